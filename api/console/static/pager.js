// Pages of a list, in order: each answer says where the next page begins.

import { button, el } from "./dom.js";

export class Pager {
  #starts = [];
  #next = null;

  /** `first` is where the first page begins; `turned` is called when the reader wants another page. */
  constructor(first, turned) {
    this.first = first;
    const turn = (change) => () => {
      change();
      return turned();
    };
    this.back = button("Previous", turn(() => this.#starts.pop()), { repeats: true });
    this.more = button("Next", turn(() => this.#starts.push(this.#next)), { repeats: true });
    this.row = el("div", { class: "row" }, this.back, this.more);
    this.reset();
  }

  /** Go back to the first page; the next answer belongs to it. */
  reset() {
    this.#starts = [this.first];
    this.ends(null);
  }

  /** Where the current page begins. */
  get start() {
    return this.#starts.at(-1);
  }

  get isFirst() {
    return this.#starts.length === 1;
  }

  /** Note the answer: `next` is where the next page begins, null if this is the last. */
  ends(next) {
    this.#next = next;
    this.back.disabled = this.isFirst;
    this.more.disabled = next === null;
    this.row.hidden = this.isFirst && next === null;
  }
}
