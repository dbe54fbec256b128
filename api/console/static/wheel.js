// The four levels of the wheel as rings, finest outside. A slot's place on its ring is its time modulo one turn, so
// slots stay in place and each ring's hand goes round: what the hand has passed is the far end of the ring.

import { el, svg } from "./dom.js";
import { clock, count, counted, day, short, span } from "./format.js";
import { Levels } from "./levels.js";
import { SLOT_MS, Slots } from "./slots.js";

const RINGS = [
  { level: "second", slots: 240, turn: "4 min", outer: 294, inner: 254 },
  { level: "minute", slots: 180, turn: "3 h", outer: 245, inner: 205 },
  { level: "hour", slots: 72, turn: "3 d", outer: 196, inner: 154 },
  { level: "day", slots: 90, turn: "90 d", outer: 145, inner: 105 },
].map((ring) => ({ ...ring, slotMs: SLOT_MS[ring.level] }));
const CENTRE = 300;
const GAP = 0.9; // between slots, in units of the drawing
const LOADS = ["none", "1–9", "10–99", "100–999", "1K–9.9K", "10K–99K", "100K or more"];
const KEYS = "Click a slot for its messages. Keys: ← → along a ring, ↑ ↓ between rings, PgUp PgDn to slots in use, Home to now, Enter.";

/** 0 for an empty slot, else the number of digits of its count, at most 6: each shade is ten times the previous. */
const load = (waiting) => (waiting ? Math.min(String(waiting).length, LOADS.length - 1) : 0);

function sector(ring, index) {
  const step = (2 * Math.PI) / ring.slots;
  const point = (radius, side) => {
    const angle = (index + side) * step - Math.PI / 2 + ((side ? -1 : 1) * GAP) / 2 / radius;
    return `${(CENTRE + radius * Math.cos(angle)).toFixed(2)} ${(CENTRE + radius * Math.sin(angle)).toFixed(2)}`;
  };
  return `M${point(ring.outer, 0)}A${ring.outer} ${ring.outer} 0 0 1 ${point(ring.outer, 1)}`
    + `L${point(ring.inner, 1)}A${ring.inner} ${ring.inner} 0 0 0 ${point(ring.inner, 0)}Z`;
}

/** Draws the rings into an element; calls `choose` with {title, fromMs, toMs, count} of the chosen slot. */
export class Wheel {
  #slots = Slots.none();
  #nowMs = 0;
  #cursor = { ring: 0, startMs: 0 };
  #cells = new Map(); // path -> {ring, startMs, count}

  constructor(place, choose) {
    this.choose = choose;
    this.rings = RINGS.map((ring, number) => this.#ring(ring, number));
    this.total = svg("text", { class: "total", x: CENTRE, y: CENTRE - 8 });
    this.next = svg("text", { class: "next", x: CENTRE, y: CENTRE + 46 });
    this.drawing = svg("svg", {
      viewBox: "0 0 600 600", tabindex: 0, role: "listbox", "aria-describedby": "wheel-keys",
      "aria-label": "Timing wheel: slots of seconds, minutes, hours and days",
    },
      this.rings.map((ring) => svg("g", { role: "group", "aria-label": `${ring.level}s` }, ring.paths)),
      this.rings.map((ring) => ring.hand),
      this.total, svg("text", { class: "unit", x: CENTRE, y: CENTRE + 20 }, "waiting"), this.next);
    this.readout = el("p", { class: "readout" }, "\u00a0");
    this.levels = new Levels(RINGS, choose);
    place.append(
      el("div", { class: "wheel" }, this.drawing), this.readout,
      el("ul", { class: "loads", "aria-label": "Messages in a slot" },
        LOADS.map((text, number) => el("li", {}, el("span", { class: "swatch", "data-load": number }), text))),
      this.levels.table, el("p", { id: "wheel-keys", class: "quiet small" }, KEYS));
    this.#listen();
  }

  /** Draw a new state of the slots. */
  take(slots) {
    this.#slots = slots;
    this.draw(this.#nowMs || slots.nowMs);
  }

  /** Turn the hands to a time. `pending` counts messages only; slots count leases of groups, too. */
  draw(nowMs, pending) {
    this.#nowMs = nowMs;
    for (const ring of this.rings) {
      const base = Math.floor(nowMs / ring.slotMs);
      const turned = ((nowMs / ring.slotMs) % ring.slots) * (360 / ring.slots);
      ring.hand.setAttribute("transform", `rotate(${turned.toFixed(3)} ${CENTRE} ${CENTRE})`);
      ring.paths.forEach((path, index) => {
        const startMs = (base + ((index - (base % ring.slots) + ring.slots) % ring.slots)) * ring.slotMs;
        this.#show(path, ring, startMs, this.#slots.count(ring.level, startMs));
      });
    }
    if (pending !== undefined) this.total.textContent = pending < 1e6 ? count(pending) : short(pending);
    const first = this.#slots.first(nowMs);
    this.next.textContent = first ? `next ${first.level === "second" ? "" : "from "}${this.#when(first)}` : "nothing to fire";
    this.levels.draw(this.#slots, nowMs);
    this.#follow();
  }

  #when({ level, startMs }) {
    const at = Math.max(startMs, this.#nowMs);
    return day(at) === day(this.#nowMs) ? clock(at, { seconds: level === "second" }) : day(at);
  }

  #ring(ring, number) {
    const paths = Array.from({ length: ring.slots }, (_, index) =>
      svg("path", { id: `slot-${ring.level}-${index}`, d: sector(ring, index), role: "option", "data-load": 0 }));
    paths.forEach((path) => this.#cells.set(path, { ring: number, startMs: -1, count: -1 }));
    const hand = svg("line", {
      class: "hand", x1: CENTRE, x2: CENTRE, y1: CENTRE - ring.inner + 2, y2: CENTRE - ring.outer - 3,
    });
    return { ...ring, paths, hand };
  }

  #show(path, ring, startMs, waiting) {
    const cell = this.#cells.get(path);
    if (cell.startMs === startMs && cell.count === waiting) return;
    // The chosen slot is over, and a slot one turn later has its place; deselect it.
    if (cell.startMs !== startMs) path.removeAttribute("aria-selected");
    cell.startMs = startMs;
    cell.count = waiting;
    path.setAttribute("data-load", load(waiting));
    path.setAttribute("aria-label", this.#words(ring, startMs, waiting));
  }

  #words(ring, startMs, waiting) {
    return `${ring.level} ${span(startMs, startMs + ring.slotMs, this.#nowMs)}, ${waiting ? `${count(waiting)} waiting` : "empty"}`;
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

  /** Put the cursor on the slot of a ring that holds a time, or on the nearest slot of the current turn. */
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

  /** Move the cursor along with the hand. */
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
    this.readout.textContent = cell ? this.#words(this.rings[cell.ring], cell.startMs, cell.count) : "\u00a0";
  }

  #choose(cell) {
    const ring = this.rings[cell.ring];
    this.drawing.querySelector("[aria-selected]")?.removeAttribute("aria-selected");
    ring.paths[(cell.startMs / ring.slotMs) % ring.slots].setAttribute("aria-selected", "true");
    const toMs = cell.startMs + ring.slotMs;
    const title = `Slot of ${ring.level === "hour" ? "an" : "a"} ${ring.level}, ${span(cell.startMs, toMs, this.#nowMs)}: ${counted(cell.count, "timer")}`;
    this.choose({ title, fromMs: cell.startMs, toMs, count: cell.count });
  }
}
