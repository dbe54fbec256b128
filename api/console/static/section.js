// The common base of the lists of topics, groups, subscriptions and schedules: a filter, a table that
// refreshes itself, and the service's words when it cannot be loaded.

import * as address from "./address.js";
import { el, renew } from "./dom.js";
import { count } from "./format.js";
import { Pager } from "./pager.js";
import { changes as rights } from "./rights.js";
import { none, problem, table } from "./table.js";
import { nothing, teaching } from "./teaching.js";

const PAGE = 100;

export class Section {
  /**
   * `given`: name, title, feed, columns, words(row) to filter by, keeps(row), noun, how to create one, `teaches`:
   * commands that do, and acts(): the buttons above the list, those that the token may use.
   */
  constructor({ acts = () => [], keeps = () => true, ...given }) {
    Object.assign(this, given, { acts, keeps });
    const label = `Filter ${this.title.toLowerCase()}`;
    this.filter = el("input", { type: "search", placeholder: label, "aria-label": label, on: { input: () => this.#typed() } });
    this.actions = el("div", { class: "row" }, this.acts());
    this.note = el("p", { class: "quiet small", role: "status", tabindex: -1 });
    this.place = el("div", {}, el("p", { class: "empty" }, "Loading"));
    this.pager = new Pager(0, () => this.#turned());
    this.panel = el("div", { class: "stack" },
      el("div", { class: "row" }, el("div", { class: "row push" }, this.filter, this.note), this.actions), this.place, this.pager.row);
    this.feed.addEventListener("change", () => this.draw());
    rights.addEventListener("change", () => {
      this.actions.replaceChildren(...this.acts());
      this.draw();
    });
  }

  /** Take the filter from the address. */
  arrive({ find = "" }) {
    this.filter.value = find;
    this.pager.reset();
    this.draw();
  }

  show() {
    return this.feed.poll.start();
  }

  hide() {
    this.feed.poll.stop();
  }

  #typed() {
    address.adjust({ find: this.filter.value.trim() });
    this.pager.reset();
    this.draw();
  }

  #turned() {
    this.draw();
    this.note.focus({ preventScroll: true });
    this.note.scrollIntoView({ block: "nearest" });
  }

  draw() {
    if (this.feed.error) {
      this.note.textContent = "";
      this.pager.ends(null);
      renew(this.place, problem(this.feed.error));
    } else if (this.feed.rows) this.#drawRows(this.feed.rows.filter(this.keeps));
  }

  #drawRows(rows) {
    const wanted = this.filter.value.trim().toLowerCase();
    const found = wanted ? rows.filter((row) => this.words(row).toLowerCase().includes(wanted)) : rows;
    if (this.pager.start >= found.length) this.pager.reset(); // the rows of this page are gone
    const first = this.pager.start;
    const end = Math.min(first + PAGE, found.length);
    const empty = rows.length ? nothing(`None contains “${this.filter.value.trim()}”.`, address.to(this.name)) : teaching(none(this.noun, this.how), this.teaches);
    renew(this.place, table(this.title, this.columns, found.slice(first, end), empty));
    this.pager.ends(end < found.length ? end : null);
    const place = found.length > PAGE ? `${count(first + 1)} to ${count(end)} of ${count(found.length)}` : wanted && found.length ? `${count(found.length)} of ${count(rows.length)}` : "";
    const words = [place, this.feed.isCut && `the first ${count(rows.length)} by name were loaded, there are more`].filter(Boolean).join("; ");
    if (this.note.textContent !== words) this.note.textContent = words;
  }
}
