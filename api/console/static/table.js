// Tables: named columns, rows of what a service told, and what to do when there are none.

import { el } from "./dom.js";

/**
 * A table in a box that scrolls by itself. Columns are {head, cell(row), kind?}: a cell is a text, an element or
 * null; kinds are `number`, `mono`, and `wide` for what small screens leave out.
 */
export function table(caption, columns, rows, empty) {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  const head = columns.map(({ head: text, kind }) => el("th", { scope: "col", class: kind }, text));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "hidden" }, caption), el("thead", {}, el("tr", {}, head)),
      el("tbody", {}, rows.map((row) => el("tr", {}, columns.map(({ cell, kind }) => el("td", { class: kind }, cell(row))))))));
}

/** Names and values one below the other. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return el("dl", { class: "facts" }, shown.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

/** What stands in the place of a list that cannot be had. */
export const problem = (error) => el("p", { class: "problem", role: "alert" }, error.message);
