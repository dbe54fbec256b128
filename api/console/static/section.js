// The common base of the lists of topics, groups, subscriptions and schedules: a filter, a table that
// refreshes itself, and the service's words when it cannot be loaded.

import { call } from "./api.js";
import { el, renew } from "./dom.js";
import { Poll } from "./poll.js";
import { none, problem, table } from "./table.js";

const ROWS_MAX = 200;

export class Section {
  /** `given`: name, title, url, key of the list in the answer, columns, words(row) to filter by, noun, how to create one. */
  constructor(given) {
    Object.assign(this, given);
    this.rows = null; // not loaded yet
    const label = `Filter ${this.title.toLowerCase()}`;
    this.filter = el("input", { type: "search", placeholder: label, "aria-label": label, on: { input: () => this.draw() } });
    this.note = el("p", { class: "quiet small" });
    this.place = el("div", {}, el("p", { class: "empty" }, "Loading"));
    this.panel = el("div", { class: "stack" }, el("div", { class: "row" }, this.filter, this.note), this.place);
    this.poll = new Poll(() => this.load(), (error) => this.#fail(error));
  }

  show() {
    return this.poll.start();
  }

  hide() {
    this.poll.stop();
  }

  async load() {
    this.rows = (await call("GET", this.url))[this.key];
    this.draw();
  }

  /** Forget the rows, too: another token may have loaded them. */
  #fail(error) {
    this.rows = null;
    this.note.textContent = "";
    renew(this.place, problem(error));
  }

  draw() {
    if (!this.rows) return;
    const wanted = this.filter.value.trim().toLowerCase();
    const found = wanted ? this.rows.filter((row) => this.words(row).toLowerCase().includes(wanted)) : this.rows;
    const shown = found.slice(0, ROWS_MAX);
    const empty = this.rows.length ? `None contains “${this.filter.value.trim()}”.` : none(this.noun, this.how);
    renew(this.place, table(this.title, this.columns, shown, empty));
    this.note.textContent = found.length > shown.length ? `The first ${shown.length} of ${found.length}; filter for others.` : "";
  }
}
