// The lists below the wheel, one at a time; the address says which one is shown, and with which filter.

import * as address from "./address.js";
import { el } from "./dom.js";
import { short } from "./format.js";

const MARGIN = 24; // pixels of the previous tab that stay visible when not all tabs fit

/** `sections` are {name, title, panel, arrive(given), show(), hide()}. */
export class Tabs {
  #shown = null;
  #given = "";

  constructor(list, panels, sections) {
    this.list = list;
    this.sections = sections;
    this.marks = sections.map(() => el("span", { class: "mark", hidden: true }));
    this.tabs = sections.map((section, index) => el("button", {
      type: "button", role: "tab", id: `tab-${section.name}`, "aria-controls": `panel-${section.name}`,
      on: { click: () => this.open(section.name) },
    }, section.title, this.marks[index]));
    this.panels = sections.map((section) => el("div", {
      id: `panel-${section.name}`, role: "tabpanel", "aria-labelledby": `tab-${section.name}`, hidden: true,
    }, section.panel));
    list.append(...this.tabs);
    panels.append(...this.panels);
    list.addEventListener("keydown", (event) => this.#key(event));
    address.follows(({ list: name, given }) => this.#follow(name, given));
  }

  /** Go to a list, without a filter. */
  open(name) {
    address.go(address.to(name));
  }

  /** Show or hide the tab of a list: not every service has it. */
  offer(name, offered) {
    this.tabs[this.sections.findIndex((section) => section.name === name)].hidden = !offered;
  }

  /** Reload the list that is shown. */
  renew() {
    this.#shown.show();
  }

  /** Show how many things need attention in each list: {name: count}. */
  mark(counts) {
    this.sections.forEach(({ name }, index) => {
      const mark = this.marks[index];
      const number = counts[name] ?? 0;
      mark.hidden = !number;
      if (mark.textContent !== short(number)) mark.textContent = short(number);
      mark.title = number ? `${number} need attention` : "";
    });
  }

  /** Other fragments, such as an element of the page, change nothing. */
  #follow(name, given) {
    const wanted = this.sections.find((section) => section.name === name) ?? (this.#shown ? null : this.sections[0]);
    if (!wanted) return;
    const written = JSON.stringify(given);
    const isNew = wanted !== this.#shown;
    if (!isNew && written === this.#given) return;
    this.#given = written;
    if (isNew) this.#turn(wanted);
    wanted.arrive(given);
    wanted.show();
  }

  #turn(wanted) {
    this.#shown?.hide();
    this.#shown = wanted;
    this.sections.forEach((section, index) => {
      const shown = section === wanted;
      this.tabs[index].setAttribute("aria-selected", String(shown));
      this.tabs[index].tabIndex = shown ? 0 : -1;
      this.panels[index].hidden = !shown;
      if (shown) this.list.scrollLeft = this.tabs[index].offsetLeft - this.list.offsetLeft - MARGIN;
    });
  }

  #key(event) {
    const offered = this.sections.filter((_, index) => !this.tabs[index].hidden);
    const last = offered.length - 1;
    const at = offered.indexOf(this.#shown);
    const next = {
      ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last,
    }[event.key];
    if (next === undefined) return;
    this.open(offered[next].name);
    this.tabs[this.sections.indexOf(offered[next])].focus();
    event.preventDefault();
  }
}
