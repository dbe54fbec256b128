// The levels of the wheel in numbers: what the rings show, and what lies beyond one turn.

import { el } from "./dom.js";
import { count, span } from "./format.js";

const HEADS = ["Ring", "A turn", "Slots in use", "Waiting", "Further out"];
const TURN = 1; // the column that small screens leave out

const kind = (place) => (place > TURN ? "number" : place === TURN ? "wide" : null);

/** `rings` are {level, turn, slots, slotMs}; calls `choose` with {title, fromMs, count} of what lies beyond. */
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
    row.further = el("button", { type: "button", class: "link", hidden: true, on: {
      click: () => choose({ title: `Due ${span(row.endMs, null)}`, fromMs: row.endMs, count: row.beyond }),
    } });
    row.element = el("tr", {}, el("th", { scope: "row" }, `${ring.level}s`), el("td", { class: "wide" }, ring.turn), row.used, row.waiting,
      el("td", { class: "number" }, row.none, row.further));
    return row;
  }
}
