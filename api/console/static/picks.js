// The ticked rows of a list: a box for each row, kept when the list is drawn again.

import { el } from "./dom.js";

export class Picks {
  #chosen = new Set();

  /** `place` is where the list is drawn; `changed` is called when another row is ticked. */
  constructor(place, changed) {
    this.place = place;
    place.addEventListener("change", ({ target }) => {
      if (!target.matches("input[data-pick]")) return;
      if (target.checked) this.#chosen.add(target.value);
      else this.#chosen.delete(target.value);
      changed();
    });
    this.changed = changed;
  }

  /** The ticked rows. */
  get chosen() {
    return [...this.#chosen];
  }

  /** The box of a row. */
  box(id) {
    return el("input", { type: "checkbox", value: id, "data-pick": true, "aria-label": `Choose ${id}`, "data-key": `choose ${id}` });
  }

  clear() {
    this.#chosen.clear();
    this.changed();
  }

  /** After the list was drawn: rows that are gone are not ticked any more. */
  drawn() {
    const boxes = [...this.place.querySelectorAll("input[data-pick]")];
    const kept = new Set(boxes.map((box) => box.value).filter((id) => this.#chosen.has(id)));
    for (const box of boxes) box.checked = kept.has(box.value);
    if (kept.size === this.#chosen.size) return;
    this.#chosen = kept;
    this.changed();
  }
}
