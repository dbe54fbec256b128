// The levels of the wheel in numbers: what the rings show, and what lies beyond one turn.

import { el } from "../dom.js";
import { count } from "../format.js";

const HEADS = ["Ring", "What it shows", "Slots in use", "Scheduled", "Further out"];
const SHOWS = 1; // the column that small screens leave out
const MOVES = {
  second: "fires at the needle",
  minute: "moves out to S 3 min ahead",
  hour: "moves out to M 2 h ahead",
  day: "moves out to H 2 d ahead",
};

const kind = (place) => (place > SHOWS ? "number" : place === SHOWS ? "wide" : null);

/** `rings` are those of `rings.js`; calls `choose` with {fromMs} of what lies beyond. */
export class Levels {
  constructor(rings, choose) {
    this.rows = rings.map((ring) => this.#row(ring, choose));
    this.table = el("table", { class: "levels" },
      el("caption", { class: "hidden" }, "The levels of the wheel"),
      el("thead", {}, el("tr", {}, HEADS.map((head, place) => el("th", { scope: "col", class: kind(place) }, head)))),
      el("tbody", {}, this.rows.map((row) => row.element)));
  }

  /** Show the counts at a time. */
  draw(slots, nowMs) {
    for (const row of this.rows) {
      const { level, slotMs, slots: places } = row.ring;
      row.endMs = (Math.floor(nowMs / slotMs) + places) * slotMs;
      row.beyond = slots.beyond(level, row.endMs);
      const shown = slots.sum(level, nowMs, row.endMs);
      row.used.textContent = count(shown.slots);
      row.waiting.textContent = count(shown.count);
      row.further.textContent = count(row.beyond);
      row.further.ariaLabel = `${count(row.beyond)} beyond the ring of ${level}s`;
      row.further.hidden = !row.beyond;
      row.none.hidden = Boolean(row.beyond);
    }
  }

  #row(ring, choose) {
    const number = () => el("td", { class: "number" });
    const row = { ring, used: number(), waiting: number(), none: el("span", {}, "–") };
    row.further = el("button", { type: "button", class: "link", hidden: true, on: { click: () => choose({ fromMs: row.endMs }) } });
    row.element = el("tr", {}, el("th", { scope: "row" }, el("b", {}, ring.letter), ` ${ring.level}s`),
      el("td", { class: "wide" }, `${ring.turn}; ${MOVES[ring.level]}`), row.used, row.waiting, el("td", { class: "number" }, row.none, row.further));
    return row;
  }
}
