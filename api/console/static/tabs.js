// The lists below the wheel, one at a time; its name is in the address, so it can be linked to.

import { el } from "./dom.js";

const MARGIN = 24; // pixels of the previous tab that stay visible when not all tabs fit

/** `sections` are {name, title, panel, show(), hide()}. */
export class Tabs {
  #shown = null;

  constructor(list, panels, sections) {
    this.list = list;
    this.sections = sections;
    this.tabs = sections.map((section) => el("button", {
      type: "button", role: "tab", id: `tab-${section.name}`, "aria-controls": `panel-${section.name}`,
      on: { click: () => this.open(section.name) },
    }, section.title));
    this.panels = sections.map((section) => el("div", {
      id: `panel-${section.name}`, role: "tabpanel", "aria-labelledby": `tab-${section.name}`, hidden: true,
    }, section.panel));
    list.append(...this.tabs);
    panels.append(...this.panels);
    list.addEventListener("keydown", (event) => this.#key(event));
    addEventListener("hashchange", () => this.#show(this.#named() ?? this.#shown));
    this.#show(this.#named() ?? sections[0]);
  }

  /** Show a list; false if it is already shown. */
  open(name) {
    const before = this.#shown;
    this.#show(this.sections.find((section) => section.name === name));
    location.hash = name;
    return before !== this.#shown;
  }

  /** Reload the list that is shown. */
  renew() {
    this.#shown.show();
  }

  /** The list that the address names; undefined for other fragments, such as an element of the page. */
  #named() {
    return this.sections.find((section) => `#${section.name}` === location.hash);
  }

  #show(wanted) {
    if (wanted === this.#shown) return;
    this.#shown?.hide();
    this.#shown = wanted;
    this.sections.forEach((section, index) => {
      const shown = section === wanted;
      this.tabs[index].setAttribute("aria-selected", String(shown));
      this.tabs[index].tabIndex = shown ? 0 : -1;
      this.panels[index].hidden = !shown;
      if (shown) this.list.scrollLeft = this.tabs[index].offsetLeft - this.list.offsetLeft - MARGIN;
    });
    wanted.show();
  }

  #key(event) {
    const last = this.tabs.length - 1;
    const at = this.tabs.findIndex((tab) => tab.tabIndex === 0);
    const next = {
      ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last,
    }[event.key];
    if (next === undefined) return;
    this.open(this.sections[next].name);
    this.tabs[next].focus();
    event.preventDefault();
  }
}
