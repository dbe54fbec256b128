// Tables: named columns, rows from the service, and texts for tables without rows.

import { el } from "./dom.js";
import { seesAll } from "./rights.js";

const FORBIDDEN = 403;

/**
 * A table in a box with its own scroll bar. Columns are {head, cell(row), kind?, label?}; a column without a head has a
 * label for screen readers. A cell is a text, an element or
 * null; kinds are `number`, `mono`, `line` for text that stays on one line, `name` and `long` for text that may
 * break anywhere, `cut` for text that is shown in full elsewhere.
 *
 * On small screens a row is a paragraph, with each head before its value. The ARIA roles keep it a table: with
 * another `display` a browser may stop treating it as one.
 */
export function table(caption, columns, rows, empty) {
  if (!rows.length) return el("div", { class: "empty" }, empty);
  const head = columns.map(({ head: text, kind, label = "More" }) => el("th", { scope: "col", role: "columnheader", class: kind },
    text || el("span", { class: "hidden" }, kind === "acts" ? "Actions" : label)));
  const line = (row) => el("tr", { role: "row" }, columns.map(({ head: text, cell, kind }) =>
    el("td", { role: "cell", class: kind, "data-head": text || null }, cell(row))));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", { class: "list", role: "table" }, el("caption", { class: "hidden" }, caption),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)), el("tbody", { role: "rowgroup" }, rows.map(line))));
}

/** A list of names and values. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
  return el("dl", { class: "facts" }, shown.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

/** The full reason below a badge; null without a reason. */
export const reason = (text) => (text ? el("p", { class: "small bad" }, text) : null);

/** Shown instead of a list that cannot be loaded; `hint` says what to do if the token may not see it. */
export function problem(error, hint = "") {
  const refused = error.status === FORBIDDEN;
  return el("div", { class: "problem", role: "alert" },
    refused ? el("strong", {}, "This token has no access to this.") : null,
    el("p", {}, refused && hint ? `${error.message}. ${hint}` : error.message));
}

/** The text of an empty list; to a token with access to some topics, it may only look empty. */
export function none(noun, how) {
  if (seesAll()) return `No ${noun} yet. ${how}`;
  return `This token sees no ${noun}. There may be others: a token with access to some topics sees only those. ${how}`;
}
