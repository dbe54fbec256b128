// Dead letters of a group: find those that meet a filter, inspect, redrive or drop them.

import * as address from "./address.js";
import { call, query } from "./api.js";
import { Chips } from "./chips.js";
import { arrived, button, el, field, form, renew, wait } from "./dom.js";
import { count, counted, exact, fieldTime, localTime, time } from "./format.js";
import { LetterFilter } from "./letter_filter.js";
import { keyOf, remember } from "./message.js";
import { attempt, confirm, tell } from "./notices.js";
import { now } from "./now.js";
import { Pager } from "./pager.js";
import { opener } from "./panels.js";
import { Reasons } from "./reasons.js";
import { changes as rights, offer } from "./rights.js";
import { none, problem, table } from "./table.js";
import { nothing, teaching } from "./teaching.js";

const PAGE = 50;
const PART = 250; // letters changed by one request
const SEARCH_MS = 4_000; // pages of the service may be empty: how long to go on by itself
const GROUPS_MAX = 12; // offered as links; the field suggests them all
const HOW = "A message becomes one when all attempts that its group allows have failed.";
const TEACHES = ["timerwheel groups put orders workers --max-attempts 3", "timerwheel dlq reasons orders/workers", "timerwheel dlq redrive orders/workers --all"];
const HINT = "Name a group as topic/group. The group's name alone means the groups of that name on every topic; they share the dead letters in %DLQ% plus the name.";

/** Read pages of the service until there are `PAGE` letters, or no more, or the time is over: {letters, next}. */
async function read(asked, start, goesOn) {
  const began = performance.now();
  const letters = [];
  let from = start;
  do {
    const page = await call("GET", `${asked.place}${query({ ...asked.conditions, from, limit: PAGE - letters.length })}`);
    letters.push(...page.letters);
    from = page.next_offset;
  } while (from !== null && letters.length < PAGE && goesOn() && performance.now() - began < SEARCH_MS);
  return { letters, next: from };
}

const box = ({ offset, message }) =>
  el("input", { type: "checkbox", value: offset, "aria-label": `Choose ${message.id}`, "data-key": `choose ${offset}` });

/** A dead letter is a copy with its own id, and can be opened even when the original is gone. */
function copy({ offset, message }) {
  const link = opener("message", message.id, message.id, { "data-key": `letter ${offset}` });
  link.addEventListener("click", () => remember(message));
  return link;
}

const origin = (one) => opener("message", one.origin_id, one.origin_id, { "data-key": `origin ${one.offset}` });

export class Letters {
  name = "letters";
  title = "Dead letters";
  #asked = new LetterFilter({}, now());
  #drawn = ""; // the group whose letters are in the table
  #turn = 0; // number of the newest request; answers to older ones may be of another group and are ignored

  /** `feed` is the list of groups. */
  constructor(feed) {
    this.feed = feed;
    feed.addEventListener("change", () => this.#offer());
    this.names = el("datalist", { id: "dead-groups" });
    this.search = form({ class: "search wide" }, (given) => attempt(() => this.#find(given)),
      field("Group", { name: "group", list: "dead-groups", required: true, placeholder: "topic/group" }),
      field("On topic", { name: "topic", list: "topic-names", placeholder: "if not in Group" }),
      field("Reason contains", { name: "reason" }),
      field("Key", { name: "key", class: "mono" }),
      field("Died from", { name: "from", type: "datetime-local", step: 1 }),
      field("Died until", { name: "to", type: "datetime-local", step: 1 }),
      el("div", { class: "row" }, el("button", { class: "primary" }, "Show"), button("Clear", () => this.#show({ group: this.#asked.group }))),
      this.names);
    this.others = el("div", { hidden: true });
    this.note = el("p", { class: "quiet small", tabindex: -1 });
    this.chips = new Chips(this.note);
    this.place = el("div", {}, el("p", { class: "empty" }, "Loading"));
    this.pager = new Pager(0, () => this.#turned());
    this.redriveAll = button("Redrive all", () => this.#act("redrive", true));
    this.dropAll = button("Drop all", () => this.#act("drop", true), { class: "danger" });
    this.acts = el("div", { class: "row", hidden: true });
    this.reasons = new Reasons((verb, offsets) => this.#change(verb, offsets));
    this.panel = el("div", { class: "stack" }, this.others, this.search, this.chips.element, this.acts, this.reasons.element, this.note, this.place, this.pager.row);
    this.#offerActs();
    rights.addEventListener("change", () => {
      this.#offerActs();
      if (this.feed.rows && !this.feed.error && !this.#asked.group) this.#teach();
    });
  }

  #offerActs() {
    this.acts.replaceChildren(...offer("admin",
      button("Redrive chosen", () => this.#act("redrive", false)), this.redriveAll,
      button("Drop chosen", () => this.#act("drop", false), { class: "danger" }), this.dropAll));
  }

  /** Take the filter from the address; without a group it is the one that is shown. */
  arrive(given) {
    this.#choose({ group: this.#asked.group, ...given });
  }

  /** Load the groups that have dead letters, and then the letters. */
  async show() {
    await this.feed.poll.now();
    if (this.feed.error && !this.#asked.group) this.#clear(problem(this.feed.error));
    else if (this.#asked.group) await this.#load();
    else this.#teach();
  }

  /** There is no group to show. */
  #teach() {
    this.#clear(el("div", { class: "empty" }, teaching(none("dead letter", HOW), TEACHES)));
  }

  hide() {}

  /** Offer the groups that have dead letters; if none is chosen, choose the first. */
  #offer() {
    const dead = (this.feed.rows ?? []).filter((group) => group.dead_letters).map(({ topic, group, dead_letters: letters }) => ({ name: `${topic}/${group}`, letters }));
    this.names.replaceChildren(...dead.map(({ name }) => el("option", { value: name })));
    if (!this.#asked.group && dead.length) {
      const typed = this.#field("group").value; // the reader is typing another name
      this.#choose({ ...this.#asked.given, group: dead[0].name });
      if (typed) this.#field("group").value = typed;
    }
    this.others.hidden = dead.length < 2;
    const links = dead.slice(0, GROUPS_MAX).map(({ name, letters }) => el("li", {}, el("a", {
      class: "filter", href: address.to("letters", { group: name }), "aria-current": name === this.#asked.group ? "true" : null, "data-key": `group ${name}`,
    }, el("span", {}, name), el("span", { class: "quiet" }, count(letters)))));
    renew(this.others, el("ul", { class: "filters", "aria-label": "Where dead letters are" }, links));
  }

  #field(name) {
    return this.search.elements[name];
  }

  /** The filter that the form says. */
  #find({ group, topic = "", reason = "", key = "", from = "", to = "" }) {
    const [name, of] = [group.trim(), topic.trim()];
    if (of && name.includes("/") && name.split("/")[0] !== of) throw new Error(`${name} is a group of the topic ${name.split("/")[0]}. Clear one of the two.`);
    return this.#show({ group: name, topic: name.includes("/") ? "" : of, reason: reason.trim(), key: key.trim(), ...this.#when(from, to) });
  }

  /** The parameters of the address for two times of the form; one that was not touched stays to the millisecond. */
  #when(from, to) {
    const { fromMs: hadFromMs, toMs: hadToMs } = this.#asked;
    const [fromMs, toMs] = [fieldTime(from, hadFromMs), fieldTime(to, hadToMs)];
    if (fromMs >= toMs) throw new Error("The time ends before it begins. Choose a later end, or an earlier beginning.");
    return { from: fromMs, to: toMs };
  }

  /** Go to the dead letters of a filter; load them again if they are shown. */
  #show(given) {
    const hash = address.to("letters", given);
    if (hash !== location.hash) return address.go(hash);
    this.#choose(given);
    return this.#load();
  }

  /** Choose the group and the conditions that the list will show. */
  #choose(given) {
    this.#asked = new LetterFilter(given, now());
    const { group, topic, reason, key, fromMs, toMs, name } = this.#asked;
    const texts = { group, topic, reason, key, from: localTime(fromMs), to: localTime(toMs) };
    for (const [field, text] of Object.entries(texts)) this.#field(field).value = text ?? "";
    this.chips.draw("letters", this.#asked.parts);
    this.pager.reset();
    if (JSON.stringify(this.#asked.given) === this.#drawn) return;
    this.#drawn = "";
    this.acts.hidden = this.reasons.element.hidden = true;
    this.note.textContent = "";
    if (name) wait(this.place); // no letters of another group stand below its name
  }

  async #load() {
    const turn = ++this.#turn;
    const asked = this.#asked;
    const isNewest = () => turn === this.#turn;
    try {
      const { letters, next } = await read(asked, this.pager.start, isNewest);
      if (isNewest()) this.#draw(asked, letters, next);
    } catch (error) {
      if (isNewest()) this.#clear(problem(error, HINT));
    }
  }

  #draw(asked, letters, next) {
    const written = JSON.stringify(asked.given);
    // Offsets belong to one group; in another group they would name other letters.
    const kept = this.#drawn === written ? this.place.querySelectorAll("input:checked") : [];
    const chosen = new Set([...kept].map(({ value }) => value));
    this.#drawn = written;
    this.pager.ends(next);
    const isEmpty = !letters.length && next === null && this.pager.isFirst;
    this.reasons.element.hidden = isEmpty;
    this.reasons.show(asked, letters);
    this.acts.hidden = isEmpty;
    // All dead letters of a name may span several topics; nobody means that by one group.
    this.redriveAll.hidden = this.dropAll.hidden = !asked.isOfOne;
    this.redriveAll.textContent = asked.isNarrow ? "Redrive all that match" : "Redrive all";
    this.dropAll.textContent = asked.isNarrow ? "Drop all that match" : "Drop all";
    this.note.textContent = letters.length ? `${counted(letters.length, "dead letter")} of ${asked.name} on this page` : "";
    const content = table(`Dead letters of ${asked.name}`, [
      { head: "", label: "Choose", cell: box },
      { head: "Died", kind: "mono", cell: (one) => el("span", { title: exact(one.dead_ms) }, time(one.dead_ms)) },
      { head: "Dead letter", kind: "mono", cell: copy },
      { head: "Original", kind: "mono", cell: origin },
      { head: "Topic", kind: "mono name", cell: (one) => one.origin_topic },
      { head: "Key", kind: "mono cut", cell: ({ message }) => keyOf(message) },
      { head: "Attempts", kind: "number", cell: (one) => count(one.attempts) },
      { head: "Reason", kind: "long", cell: (one) => one.reason },
    ], letters, this.#empty(asked, next));
    if (!this.place.children[0]?.isEqualNode(content)) arrived(this.place, content);
    for (const one of this.place.querySelectorAll("input")) one.checked = chosen.has(one.value);
  }

  #empty(asked, next) {
    if (next !== null) return "Nothing found yet. There is more to search: press Next.";
    if (!this.pager.isFirst) return "No more dead letters.";
    if (!asked.isNarrow) return `${asked.name} has no dead letters.`;
    return nothing(`No dead letter of ${asked.name} meets all of this: ${asked.parts.map(({ text }) => text).join(", ")}.`, address.to("letters", { group: asked.group }));
  }

  #clear(content) {
    this.acts.hidden = this.reasons.element.hidden = true;
    this.pager.ends(null);
    this.note.textContent = "";
    arrived(this.place, content);
  }

  async #turned() {
    await this.#load();
    this.note.focus();
    this.note.scrollIntoView({ block: "nearest" });
  }

  #act(verb, all) {
    return attempt(async () => {
      const offsets = [...this.place.querySelectorAll("input:checked")].map(({ value }) => Number(value));
      if (!all && !offsets.length) throw new Error("Choose some first, with the boxes in front of them.");
      await this.#change(verb, all ? null : offsets);
    });
  }

  /** Redrive or drop the letters at the offsets, or if there are none given all of the filter, after a question. */
  #change(verb, offsets) {
    return attempt(async () => {
      const asked = this.#asked;
      const which = asked.isNarrow ? ` that meet the filter: ${asked.parts.map(({ text }) => text).join(", ")}` : "";
      const what = offsets ? `${counted(offsets.length, "dead letter")} of ${asked.name}` : `all dead letters of ${asked.name}${which}`;
      const [question, text, yes] = verb === "redrive"
        ? [`Redrive ${what}?`, "The group receives them again, with all attempts left.", "Redrive"]
        : [`Drop ${what}?`, "They are deleted, and this cannot be undone.", "Drop"];
      if (!(await confirm(question, text, yes, verb === "redrive" ? "primary" : "danger"))) return;
      const parts = offsets ? Array.from({ length: Math.ceil(offsets.length / PART) }, (_, at) => ({ offsets: offsets.slice(at * PART, (at + 1) * PART) })) : [{ all: true, ...asked.conditions }];
      const done = { redriven: 0, dropped: 0, left: 0 };
      for (const part of parts) {
        const { redriven = 0, dropped = 0, left = 0 } = await call("POST", `${asked.place}/${verb}`, part);
        Object.assign(done, { redriven: done.redriven + redriven, dropped: done.dropped + dropped, left: done.left + left });
      }
      tell(verb === "redrive"
        ? `Redriven: ${count(done.redriven)}${done.left ? `; ${count(done.left)} stay, since their group is gone or full` : ""}.`
        : `Dropped: ${count(done.dropped)}.`);
      this.#choose(asked.given);
      await Promise.all([this.#load(), this.feed.renew()]);
    });
  }
}
