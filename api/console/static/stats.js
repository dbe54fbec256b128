// The numbers at the top: scheduled messages, rates and lateness.

import { el } from "./dom.js";
import { clock, count, day, duration, perSecond, rate, short } from "./format.js";
import { SLOT_MS } from "./wheel/slots.js";

const TILES = [
  ["pending", "Scheduled", "messages that are not due yet"],
  ["overdue", "Overdue", "not delivered a second or more after their due time"],
  ["next", "Next due", "leases of consumer groups included"],
  ["accepted", "Accepted /s", "messages per second, over the last second"],
  ["fired", "Fired /s", "messages per second, over the last second"],
  ["half", "Lateness p50", "half of the messages of the last minute were at most this late"],
  ["most", "Lateness p99", "99 of 100 messages of the last minute were at most this late"],
];
const LATE_MS = 1_000;

/** Draws the tiles; the overdue messages are a link to their list. */
export class Stats {
  constructor(place) {
    this.tiles = Object.fromEntries(TILES.map(([name, title, meaning]) => {
      const value = el("dd", { id: `stat-${name}` }, "–");
      place.append(el("div", { class: "tile", title: meaning }, el("dt", {}, title), value));
      return [name, value];
    }));
    this.overdue = el("a", { class: "link bad", href: "#messages?overdue=1" });
  }

  draw(tick, slots) {
    const { measures, now_ms: nowMs } = tick;
    this.#set("pending", tick.pending < 1e7 ? count(tick.pending) : short(tick.pending));
    this.#set("accepted", rateOf(tick.second, "accepted"));
    this.#set("fired", rateOf(tick.second, "fired"));
    const fired = measures.fired_total > 0;
    this.#lateness("half", fired, measures.lateness_ms_p50);
    this.#lateness("most", fired, measures.lateness_ms_p99);
    if (!slots.nowMs) return;
    const first = slots.first(nowMs);
    this.#set("next", first ? when(first, nowMs) : "–");
    this.#setOverdue(slots.overdue);
  }

  #set(name, text) {
    if (this.tiles[name].textContent !== text) this.tiles[name].textContent = text;
  }

  #lateness(name, known, ms) {
    this.#set(name, known ? duration(ms) : "–");
    this.tiles[name].classList.toggle("bad", known && ms >= LATE_MS);
  }

  #setOverdue(overdue) {
    if (!overdue) return this.#set("overdue", "0");
    this.overdue.textContent = count(overdue);
    if (!this.overdue.isConnected) this.tiles.overdue.replaceChildren(this.overdue);
    return undefined;
  }
}

/** Not from the totals of a tick: of a service in shards they shrink and grow when a shard has another leader. */
const rateOf = (point, name) => (point ? rate(perSecond(point, name)) : "–");

function when({ level, startMs }, nowMs) {
  const at = Math.max(startMs, nowMs);
  if (day(at) !== day(nowMs)) return day(at);
  return clock(at, { seconds: SLOT_MS[level] < 60_000 });
}
