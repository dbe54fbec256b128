// Tables: named columns, rows of what a service told, and what to do when there are none.

import { token } from "./api.js";
import { el } from "./dom.js";

const FORBIDDEN = 403;

/**
 * A table in a box that scrolls by itself. Columns are {head, cell(row), kind?}: a cell is a text, an element or
 * null; kinds are `number`, `mono`, `line` for what stays on one line, `name` and `long` for what may be broken
 * anywhere, `cut` for what is shown in full elsewhere.
 *
 * On small screens a row is a paragraph, with the heads before what they name. The roles say that it is a table all
 * the same: with another `display` a browser may forget it.
 */
export function table(caption, columns, rows, empty) {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  const head = columns.map(({ head: text, kind }) => el("th", { scope: "col", role: "columnheader", class: kind }, text));
  const line = (row) => el("tr", { role: "row" }, columns.map(({ head: text, cell, kind }) =>
    el("td", { role: "cell", class: kind, "data-head": text || null }, cell(row))));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", { class: "list", role: "table" }, el("caption", { class: "hidden" }, caption),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)), el("tbody", { role: "rowgroup" }, rows.map(line))));
}

/** Names and values one below the other. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return el("dl", { class: "facts" }, shown.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

/** Why something is as its sign says, in full below it; null if there is nothing to say. */
export const reason = (text) => (text ? el("p", { class: "small bad" }, text) : null);

/** What stands in the place of a list that cannot be had; `hint` says what to do if the token may not see it. */
export function problem(error, hint = "") {
  const refused = error.status === FORBIDDEN;
  return el("div", { class: "problem", role: "alert" },
    refused ? el("strong", {}, "This token may not see this.") : null,
    el("p", {}, refused && hint ? `${error.message}. ${hint}` : error.message));
}

/** What to say of an empty list: with a token it may be that the token sees nothing of what there is. */
export function none(noun, how) {
  if (!token()) return `No ${noun} yet. ${how}`;
  return `This token sees no ${noun}. There may be some all the same: a token for some topics sees those alone. ${how}`;
}
