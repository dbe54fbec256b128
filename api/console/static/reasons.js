// The dead letters of a group by reason: how many have each, to redrive or drop them together.

import * as address from "./address.js";
import { call, query } from "./api.js";
import { button, el, replace } from "./dom.js";
import { count } from "./format.js";
import { offer } from "./rights.js";
import { problem, table } from "./table.js";

const LETTERS_MAX = 5_000; // read for the counts; more are said to be more
const PAGE = 200;

/** [{reason, offsets}], most frequent first, and whether these are all; stops early when `goesOn()` is false. */
async function read({ place, conditions }, goesOn) {
  const found = new Map();
  let [from, seen] = [0, 0];
  while (from !== null && seen < LETTERS_MAX && goesOn()) {
    const { letters, next_offset: next } = await call("GET", `${place}${query({ ...conditions, from, limit: PAGE })}`);
    for (const { reason, offset } of letters) found.set(reason, [...(found.get(reason) ?? []), offset]);
    seen += letters.length;
    from = next;
  }
  const reasons = [...found].map(([reason, offsets]) => ({ reason, offsets }));
  return { reasons: reasons.sort((one, other) => other.offsets.length - one.offsets.length), isWhole: from === null };
}

const these = ({ offsets }) => (offsets.length === 1 ? "Redrive this one" : `Redrive these ${count(offsets.length)}`);

/** A section that counts when it is unfolded; `act(verb, offsets)` redrives or drops, after a question. */
export class Reasons {
  #asked = null;
  #isTouched = false; // the reader has folded or unfolded it

  constructor(act) {
    this.act = act;
    this.place = el("div", {}, el("p", { class: "quiet" }, "Counting"));
    this.summary = el("summary", { on: { click: () => (this.#isTouched = true) } }, "By reason: count, and redrive or drop those of one reason together");
    this.element = el("details", { class: "reasons", on: { toggle: () => this.element.open && this.#count() } }, this.summary, this.place);
  }

  /**
   * Show those that a filter asks for; counts again if it is unfolded. Letters of several reasons unfold it, unless
   * the reader has folded it for this group.
   */
  show(asked, letters) {
    if (asked.name !== this.#asked?.name) this.#isTouched = false;
    this.#asked = asked;
    if (this.element.open) this.#count();
    else if (!this.#isTouched && new Set(letters.map(({ reason }) => reason)).size > 1) this.element.open = true;
  }

  async #count() {
    const asked = this.#asked;
    const goesOn = () => this.#asked === asked && this.element.open;
    try {
      const { reasons, isWhole } = await read(asked, goesOn);
      if (goesOn()) replace(this.place, this.#table(asked, reasons, isWhole));
    } catch (error) {
      if (goesOn()) replace(this.place, problem(error));
    }
  }

  #table(asked, reasons, isWhole) {
    return el("div", { class: "stack tight" },
      isWhole ? null : el("p", { class: "quiet small" }, `Of the first ${count(LETTERS_MAX)}.`),
      table("Dead letters by reason", [
        { head: "Letters", kind: "number", cell: (one) => count(one.offsets.length) },
        { head: "Reason", kind: "long", cell: ({ reason }) => (reason ? el("a", {
          class: "link", href: address.to("letters", asked.with({ reason })), "aria-label": `List those with the reason ${reason}`, "data-key": `reason ${reason}`,
        }, reason) : "none") },
        { head: "", kind: "acts", cell: (one) => el("div", { class: "row" }, offer("admin",
          button(these(one), () => this.act("redrive", one.offsets), { "aria-label": `${these(one)}: ${one.reason}` }),
          button("Drop", () => this.act("drop", one.offsets), { class: "danger", "aria-label": `Drop ${count(one.offsets.length)}: ${one.reason}` }))) },
      ], reasons, "No dead letters."));
  }
}
