// The timing wheel as it is now: four rings, one needle, and in words what fires, what moves and where a rush is.

import { el, svg } from "../dom.js";
import { clock, count, counted, day, distance, short, span } from "../format.js";
import { Levels } from "./levels.js";
import { Motion } from "./motion.js";
import { angleAt, callLine, HEIGHT, NEEDLE, point, RINGS, ringOutline, slotOutline, WIDTH, X, Y } from "./rings.js";
import { nextRush } from "./rush.js";
import { Slots } from "./slots.js";

const LOADS = ["none", "1–9", "10–99", "100–999", "1K–9.9K", "10K–99K", "100K or more"];
const CLICK = "Click a slot for its messages.";
const KEYS = " Keys: ← → along a ring, ↑ ↓ between rings, PgUp PgDn to slots in use, Home to now, Enter.";
const NEWS_MS = 15_000; // how long the words about a cascade stay
const NOTHING = "\u00a0"; // keeps the line's height
const TURN_DEGREES = 0.1; // a ring that has turned by less is not drawn again
const FLOWS_MAX = 3; // cascades shown for one event

/** 0 for an empty slot, else the number of digits of its count, at most 6: each shade is ten times the previous. */
const load = (waiting) => (waiting ? Math.min(String(waiting).length, LOADS.length - 1) : 0);

/** Draws the rings into an element; calls `choose` with {level, startMs, fromMs, toMs} of a slot or a period. */
export class Wheel {
  #slots = Slots.none();
  #nowMs = 0;
  #cursor = { ring: 0, startMs: 0 };
  #cells = new Map(); // path -> {ring, startMs, count, moved}
  #rush = null;
  #news = "";
  #newsMs = 0;

  constructor(place, choose) {
    this.choose = choose;
    this.rings = RINGS.map((ring) => this.#ring(ring));
    this.motion = new Motion();
    this.total = svg("text", { class: "total", x: X, y: Y - 8 });
    this.next = svg("text", { class: "next", x: X, y: Y + 46 });
    this.needle = this.#needle();
    this.mark = svg("g", { class: "rush-mark", visibility: "hidden" }, svg("path", { class: "rush-line" }), svg("circle", { r: 11 }));
    this.drawing = svg("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, tabindex: 0, role: "listbox", "aria-describedby": "wheel-keys",
      "aria-label": "Timing wheel: slots of seconds, minutes, hours and days, from now on clockwise",
    },
      svg("defs", {}, svg("pattern", { id: "moved", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        svg("rect", { class: "moved-ground", width: 6, height: 6 }), svg("path", { class: "moved-line", d: "M0 0V6" })),
        RINGS.map((ring) => svg("clipPath", { id: `ring-${ring.level}` }, svg("path", { d: ringOutline(ring) })))),
      this.rings.map((ring) => svg("g", { "clip-path": `url(#ring-${ring.level})`, role: "group", "aria-label": `${ring.level}s` }, ring.turning)),
      this.mark, RINGS.map(marks), this.needle.drawn, this.motion.layer,
      this.total, svg("text", { class: "unit", x: X, y: Y + 20 }, "scheduled"), this.next);
    this.call = el("button", { type: "button", class: "rush", hidden: true, on: { click: () => this.choose(this.#rush) } });
    this.readout = el("p", { class: "readout" }, NOTHING);
    this.levels = new Levels(RINGS, choose);
    place.append(
      el("div", { class: "wheel" }, this.drawing, this.call), this.readout,
      el("ul", { class: "loads", "aria-label": "Messages in a slot" },
        LOADS.map((text, number) => el("li", {}, el("span", { class: "swatch", "data-load": number }), text)),
        el("li", {}, el("span", { class: "swatch moved" }), "already moved to the ring outside")),
      this.levels.table, el("p", { id: "wheel-keys", class: "quiet small" }, CLICK, el("span", { class: "keys" }, KEYS)));
    this.#listen();
  }

  /** Draw a new state of the slots, and show what has cascaded since the last one. */
  take(slots) {
    const before = this.#slots;
    this.#slots = slots;
    this.draw(this.#nowMs || slots.nowMs);
    if (before.nowMs) this.#tellMoves(before, slots);
  }

  /** Turn the rings to a time. `pending` counts messages only; slots count leases of groups, too. */
  draw(nowMs, { pending, fired } = {}) {
    this.#nowMs = nowMs;
    for (const ring of this.rings) this.#turn(ring, nowMs);
    if (pending !== undefined) this.total.textContent = pending < 1e6 ? count(pending) : short(pending);
    this.needle.label.textContent = `now ${clock(nowMs)}`;
    if (fired !== undefined) {
      this.needle.fired.textContent = fired ? `${count(Math.round(fired))} fired` : "";
      this.motion.fire(fired);
    }
    const first = this.#slots.first(nowMs);
    this.next.textContent = first ? `next ${this.#nextWords(first)}` : "nothing to fire";
    this.levels.draw(this.#slots, nowMs);
    this.#callRush(nowMs);
    if (this.#news && nowMs - this.#newsMs > NEWS_MS) this.#report("");
    this.#follow();
  }

  #nextWords({ level, startMs }) {
    const at = Math.max(startMs, this.#nowMs);
    if (level === "second") return startMs <= this.#nowMs ? "now" : distance(startMs, this.#nowMs);
    return `from ${day(at) === day(this.#nowMs) ? clock(at, { seconds: false }) : day(at)}`;
  }

  // ---------------------------------------------------------------- drawing

  #ring(ring) {
    const outline = slotOutline(ring);
    const paths = Array.from({ length: ring.slots }, (_, index) =>
      svg("path", { id: `slot-${ring.level}-${index}`, d: outline, role: "option", "data-load": 0 }));
    paths.forEach((path) => this.#cells.set(path, { ring: ring.number, startMs: -1, count: -1, moved: false }));
    return { ...ring, paths, turning: svg("g", { class: "turning" }, paths), first: null };
  }

  #needle() {
    const [tipX, tipY] = point(RINGS[0].outer + 8, NEEDLE);
    const [footX, footY] = point(RINGS.at(-1).inner - 6, NEEDLE);
    const label = svg("text", { class: "now", x: tipX + 10, y: tipY - 24 }, "now");
    const fired = svg("text", { class: "now fired", x: tipX - 8, y: tipY - 6 });
    return { label, fired, drawn: svg("g", { class: "needle" }, svg("line", { x1: tipX, y1: tipY, x2: footX, y2: footY }), label, fired) };
  }

  /** Turn one ring: its slots keep their places on it, except for the one that has passed the needle. */
  #turn(ring, nowMs) {
    const base = Math.floor(nowMs / ring.slotMs);
    ring.first ??= base;
    const degrees = (ring.first - nowMs / ring.slotMs) * ring.stepDegrees;
    if (!(Math.abs(degrees - ring.degrees) < TURN_DEGREES)) {
      ring.degrees = degrees;
      ring.turning.style.transform = `rotate(${degrees.toFixed(3)}deg)`;
    }
    const movedMs = this.#slots.movedUntilMs(ring.level);
    ring.paths.forEach((path, index) => {
      const number = base + ((index - (base % ring.slots) + ring.slots) % ring.slots);
      const startMs = number * ring.slotMs;
      this.#show(path, ring, number, this.#slots.count(ring.level, startMs), startMs + ring.slotMs <= movedMs);
    });
  }

  #show(path, ring, number, waiting, moved) {
    const cell = this.#cells.get(path);
    const startMs = number * ring.slotMs;
    if (cell.startMs === startMs && cell.count === waiting && cell.moved === moved) return;
    if (cell.startMs !== startMs) {
      path.setAttribute("transform", `rotate(${((number - ring.first) * ring.stepDegrees).toFixed(3)} ${X} ${Y})`);
      path.removeAttribute("aria-selected"); // the chosen slot is over, and a later one has its path
    }
    Object.assign(cell, { startMs, count: waiting, moved });
    path.setAttribute("data-load", moved && !waiting ? "moved" : load(waiting));
    path.setAttribute("aria-label", this.#words(cell));
  }

  #words({ ring: number, startMs, count: waiting, moved }) {
    const ring = this.rings[number];
    const holds = waiting ? `${count(waiting)} scheduled` : moved ? "moved to the ring outside" : "empty";
    return `${ring.level} ${span(startMs, startMs + ring.slotMs, this.#nowMs)}, ${holds}`;
  }

  // ---------------------------------------------------------------- what is happening

  #callRush(nowMs) {
    const rush = (this.#rush = nextRush(RINGS, this.#slots, nowMs));
    this.call.hidden = !rush;
    this.mark.setAttribute("visibility", rush ? "visible" : "hidden");
    if (!rush) return;
    const { ring, fromMs } = rush;
    const degrees = angleAt(ring, Math.max(rush.peakMs + ring.slotMs / 2, nowMs), nowMs);
    const [x, y] = point(ring.middle, degrees);
    const [line, circle] = this.mark.children;
    line.setAttribute("d", callLine(ring, degrees));
    circle.setAttribute("cx", x.toFixed(1));
    circle.setAttribute("cy", y.toFixed(1));
    const at = ring.level === "day" ? day(fromMs) : clock(fromMs, { seconds: ring.level === "second" });
    const onDay = ring.level === "day" || day(fromMs) === day(nowMs) ? "" : `${day(fromMs)} `;
    const when = fromMs <= nowMs ? "now" : distance(fromMs, nowMs);
    const words = [`${onDay}${at} rush`, `${counted(rush.count, "message")}, ${when}`];
    if (this.call.children.length) words.forEach((text, index) => (this.call.children[index].textContent = text));
    else this.call.append(el("strong", {}, words[0]), el("span", {}, words[1]));
  }

  #tellMoves(before, after) {
    const moves = RINGS.slice(1).flatMap((ring) => before.movedSince(ring.level, after.movedUntilMs(ring.level)).map((slot) => ({ ring, ...slot })));
    if (!moves.length) return;
    moves.slice(0, FLOWS_MAX).forEach(({ ring, startMs }) => this.motion.cascade(ring, startMs, after.nowMs));
    const { ring, startMs, count: moved } = moves[0];
    const name = ring.level === "day" ? day(startMs) : clock(startMs, { seconds: false });
    this.#report(`${counted(moved, "message")} of the ${ring.level} ${name} moved out to ${RINGS[ring.number - 1].letter}`);
  }

  /** What has just moved, in words; shown unless the reader points at a slot. */
  #report(text) {
    if (this.readout.textContent === (this.#news || NOTHING)) this.readout.textContent = text || NOTHING;
    this.#news = text;
    this.#newsMs = this.#nowMs;
  }

  // ---------------------------------------------------------------- pointing and keys

  #listen() {
    this.drawing.addEventListener("pointermove", (event) => this.#tell(this.#cells.get(event.target)));
    this.drawing.addEventListener("pointerleave", () => this.#tell(null));
    this.drawing.addEventListener("click", (event) => {
      const cell = this.#cells.get(event.target);
      if (cell && this.#nowMs) this.#choose(cell);
    });
    this.drawing.addEventListener("focus", () => this.#move(this.#cursor.ring, this.#cursor.startMs));
    this.drawing.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey || !this.#nowMs || !this.#key(event.key)) return;
      event.preventDefault();
    });
  }

  #key(key) {
    const { ring: number, startMs } = this.#cursor;
    const ring = this.rings[number];
    const move = {
      ArrowRight: () => this.#move(number, startMs + ring.slotMs),
      ArrowLeft: () => this.#move(number, startMs - ring.slotMs),
      ArrowUp: () => this.#move(Math.max(number - 1, 0), startMs),
      ArrowDown: () => this.#move(Math.min(number + 1, this.rings.length - 1), startMs),
      Home: () => this.#move(number, this.#nowMs),
      End: () => this.#move(number, this.#nowMs + (ring.slots - 1) * ring.slotMs),
      PageDown: () => this.#seek(1),
      PageUp: () => this.#seek(-1),
      Enter: () => this.#choose(this.#cells.get(this.#path())),
      " ": () => this.#choose(this.#cells.get(this.#path())),
    }[key];
    move?.();
    return move !== undefined;
  }

  /** Put the cursor on the slot of a ring that holds a time, or on the nearest slot of the ring. */
  #move(number, timeMs) {
    const ring = this.rings[number];
    const base = Math.floor(this.#nowMs / ring.slotMs);
    const slot = Math.min(Math.max(Math.floor(timeMs / ring.slotMs), base), base + ring.slots - 1);
    this.#cursor = { ring: number, startMs: slot * ring.slotMs };
    this.drawing.querySelector(".cursor")?.classList.remove("cursor");
    const path = this.#path();
    path.classList.add("cursor");
    this.drawing.setAttribute("aria-activedescendant", path.id);
    this.#tell(this.#cells.get(path));
  }

  /** Move the cursor along with the needle. */
  #follow() {
    if (document.activeElement !== this.drawing) return;
    const { ring: number, startMs } = this.#cursor;
    if (startMs + this.rings[number].slotMs <= this.#nowMs) this.#move(number, startMs);
  }

  /** Move along the ring to the next slot in use. */
  #seek(direction) {
    const { ring: number, startMs } = this.#cursor;
    const used = this.rings[number].paths.map((path) => this.#cells.get(path)).filter((cell) => cell.count > 0);
    const ahead = used.filter((cell) => direction * (cell.startMs - startMs) > 0);
    ahead.sort((one, other) => direction * (one.startMs - other.startMs));
    if (ahead.length) this.#move(number, ahead[0].startMs);
  }

  /** The slot under the cursor. */
  #path() {
    const ring = this.rings[this.#cursor.ring];
    return ring.paths[(this.#cursor.startMs / ring.slotMs) % ring.slots];
  }

  #tell(cell) {
    this.readout.textContent = cell ? this.#words(cell) : this.#news || NOTHING;
  }

  #choose(cell) {
    const ring = this.rings[cell.ring];
    this.drawing.querySelector("[aria-selected]")?.removeAttribute("aria-selected");
    ring.paths[(cell.startMs / ring.slotMs) % ring.slots].setAttribute("aria-selected", "true");
    this.choose({ slot: { level: ring.level, startMs: cell.startMs } });
  }
}

/** The letter of a ring, and marks of how far ahead its slots are. */
function marks(ring) {
  const [x, y] = point(ring.middle, 0);
  return svg("g", { class: "marks", "aria-hidden": "true" },
    svg("text", { class: "letter", x, y: y + 6 }, ring.letter),
    ring.marks.map(([aheadMs, text], number) => {
      const degrees = angleAt(ring, aheadMs, 0);
      const [fromX, fromY] = point(ring.outer, degrees);
      const [toX, toY] = point(ring.inner, degrees);
      const [textX, textY] = point(ring.middle, degrees);
      return svg("g", { class: number ? "mark further" : "mark" },
        svg("line", { x1: fromX, y1: fromY, x2: toX, y2: toY }), svg("text", { x: textX, y: textY + 4 }, text));
    }));
}
