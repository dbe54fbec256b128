// Pages of a list, one after the other: where one begins is known when the one before it was answered.

import { button, el } from "./dom.js";

export class Pager {
  #starts = [];
  #next = null;

  /** `first` is where the first page begins; `turned` is called when another page is wanted. */
  constructor(first, turned) {
    this.first = first;
    const turn = (change) => () => {
      change();
      return turned();
    };
    this.back = button("Earlier", turn(() => this.#starts.pop()));
    this.more = button("Later", turn(() => this.#starts.push(this.#next)));
    this.row = el("div", { class: "row" }, this.back, this.more);
    this.reset();
  }

  /** Go back to the first page; the next answer is its. */
  reset() {
    this.#starts = [this.first];
    this.told(null);
  }

  /** Where the page begins that is wanted. */
  get start() {
    return this.#starts.at(-1);
  }

  get isFirst() {
    return this.#starts.length === 1;
  }

  /** The page was answered: `next` is where the one after it begins, null if it is the last. */
  told(next) {
    this.#next = next;
    this.back.disabled = this.isFirst;
    this.more.disabled = next === null;
    this.row.hidden = this.isFirst && next === null;
  }
}
