// The conditions of a filter above its list: each a link that takes it away.

import * as address from "./address.js";
import { el } from "./dom.js";

/** The list of conditions; `draw(list, parts)` shows those of a filter, and `left` gets the focus of one that is gone. */
export class Chips {
  constructor(left) {
    this.left = left;
    this.element = el("ul", { class: "filters", "aria-label": "Filter", hidden: true });
  }

  /** `list` is the name of the list in the address; `parts` are {name, text, without}. */
  draw(list, parts) {
    const held = this.element.contains(document.activeElement);
    this.element.hidden = !parts.length;
    this.element.replaceChildren(...parts.map(({ name, text, without }) => el("li", {}, el("a", {
      class: "filter", href: address.to(list, without), "aria-label": `Do not filter by ${name}: ${text}`, "data-key": `filter ${name}`,
    }, el("span", {}, text), el("span", { "aria-hidden": "true" }, "✕")))));
    if (held) this.left.focus({ preventScroll: true });
  }
}
