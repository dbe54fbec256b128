// The dead letters of a group by reason: how many have each, to redrive or drop them together.

import { call, query } from "./api.js";
import { button, el, replace } from "./dom.js";
import { count } from "./format.js";
import { offer } from "./rights.js";
import { problem, table } from "./table.js";

const LETTERS_MAX = 5_000; // read for the counts; more are said to be more
const PAGE = 200;

/** [{reason, offsets}], most frequent first, and whether these are all; stops early when `goesOn()` is false. */
async function read(place, goesOn) {
  const found = new Map();
  let [from, seen] = [0, 0];
  while (from !== null && seen < LETTERS_MAX && goesOn()) {
    const { letters, next_offset: next } = await call("GET", `${place}${query({ from, limit: PAGE })}`);
    for (const { reason, offset } of letters) found.set(reason, [...(found.get(reason) ?? []), offset]);
    seen += letters.length;
    from = next;
  }
  const reasons = [...found].map(([reason, offsets]) => ({ reason, offsets }));
  return { reasons: reasons.sort((one, other) => other.offsets.length - one.offsets.length), isWhole: from === null };
}

/** A section that counts when it is unfolded; `act(verb, offsets)` redrives or drops, after a question. */
export class Reasons {
  #where = null;

  constructor(act) {
    this.act = act;
    this.place = el("div", {}, el("p", { class: "quiet" }, "Counting"));
    this.element = el("details", { on: { toggle: () => this.element.open && this.#count() } }, el("summary", {}, "By reason: count, and redrive or drop those of one reason together"), this.place);
  }

  /** Show those of another path; counts again if it is unfolded. */
  show(where) {
    this.#where = where;
    if (this.element.open) this.#count();
  }

  async #count() {
    const where = this.#where;
    const goesOn = () => this.#where === where && this.element.open;
    try {
      const { reasons, isWhole } = await read(where, goesOn);
      if (goesOn()) replace(this.place, this.#table(reasons, isWhole));
    } catch (error) {
      if (goesOn()) replace(this.place, problem(error));
    }
  }

  #table(reasons, isWhole) {
    return el("div", { class: "stack tight" },
      isWhole ? null : el("p", { class: "quiet small" }, `Of the first ${count(LETTERS_MAX)}.`),
      table("Dead letters by reason", [
        { head: "Letters", kind: "number", cell: (one) => count(one.offsets.length) },
        { head: "Reason", kind: "long", cell: (one) => one.reason },
        { head: "", kind: "acts", cell: (one) => el("div", { class: "row" }, offer("admin",
          button(`Redrive these ${count(one.offsets.length)}`, () => this.act("redrive", one.offsets), { "aria-label": `Redrive these ${count(one.offsets.length)}: ${one.reason}` }),
          button("Drop", () => this.act("drop", one.offsets), { class: "danger", "aria-label": `Drop ${count(one.offsets.length)}: ${one.reason}` }))) },
      ], reasons, "No dead letters."));
  }
}
