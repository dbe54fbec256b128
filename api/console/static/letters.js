// Dead letters of a group: inspect, redrive or drop them.

import * as address from "./address.js";
import { call, path, query } from "./api.js";
import { arrived, button, el, field, form, wait } from "./dom.js";
import { count, counted, exact, time } from "./format.js";
import { remember } from "./message.js";
import { attempt, confirm, tell } from "./notices.js";
import { Pager } from "./pager.js";
import { opener } from "./panels.js";
import { Reasons } from "./reasons.js";
import { changes as rights, offer } from "./rights.js";
import { none, problem, table } from "./table.js";

const PAGE = 50;
const PART = 250; // letters changed by one request
const HOW = "A message becomes one when all attempts that its group allows have failed.";
const HINT = "Name a group as topic/group. The group's name alone means the groups of that name on every topic; they share the dead letters in %DLQ% plus the name.";

/** The path of the dead letters of `topic/group`, or of all groups of this name. */
function lettersOf(name) {
  const [topic, group] = name.includes("/") ? name.split("/", 2) : [null, name];
  return topic === null ? path`/v1/groups/${group}/dead-letters` : path`/v1/topics/${topic}/groups/${group}/dead-letters`;
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
  #group = ""; // topic/group, or a name that groups on several topics share
  #drawn = ""; // the group whose letters are in the table
  #turn = 0; // number of the newest request; answers to older ones may be of another group and are ignored

  /** `feed` is the list of groups. */
  constructor(feed) {
    this.feed = feed;
    feed.addEventListener("change", () => this.#offer());
    this.names = el("datalist", { id: "dead-groups" });
    this.wanted = field("Group", { name: "group", list: "dead-groups", required: true });
    this.search = form({ class: "search" }, ({ group }) => this.#open(group.trim()),
      this.wanted, el("button", { class: "primary" }, "Show"), this.names);
    this.note = el("p", { class: "quiet small", tabindex: -1 });
    this.place = el("div", {}, el("p", { class: "empty" }, "Loading"));
    this.pager = new Pager(0, () => this.#turned());
    this.redriveAll = button("Redrive all", () => this.#act("redrive", true));
    this.dropAll = button("Drop all", () => this.#act("drop", true), { class: "danger" });
    this.acts = el("div", { class: "row", hidden: true });
    this.reasons = new Reasons((verb, offsets) => this.#change(verb, offsets));
    this.panel = el("div", { class: "stack" }, this.search, this.acts, this.reasons.element, this.note, this.place, this.pager.row);
    this.#offerActs();
    rights.addEventListener("change", () => this.#offerActs());
  }

  #offerActs() {
    this.acts.replaceChildren(...offer("admin",
      button("Redrive chosen", () => this.#act("redrive", false)), this.redriveAll,
      button("Drop chosen", () => this.#act("drop", false), { class: "danger" }), this.dropAll));
  }

  /** Take the group from the address. */
  arrive({ group = "" }) {
    if (group) this.#choose(group);
  }

  /** Load the groups that have dead letters, and then the letters. */
  async show() {
    await this.feed.renew();
    if (this.feed.error && !this.#group) this.#clear(problem(this.feed.error));
    else if (this.#group) await this.#load();
    else this.#clear(el("p", { class: "empty" }, none("group with dead letters", HOW)));
  }

  hide() {}

  /** Offer the groups that have dead letters; if none is chosen, choose the first. */
  #offer() {
    const names = (this.feed.rows ?? []).filter((group) => group.dead_letters).map(({ topic, group }) => `${topic}/${group}`);
    this.names.replaceChildren(...names.map((name) => el("option", { value: name })));
    if (this.#group || !names.length) return;
    this.#group = names[0];
    this.#input.value ||= names[0]; // unless the reader is typing another name
  }

  get #input() {
    return this.wanted.querySelector("input");
  }

  /** Go to the dead letters of a group; load them again if they are shown. */
  #open(group) {
    const hash = address.to("letters", { group });
    if (hash !== location.hash) return address.go(hash);
    this.#choose(group);
    return this.#load();
  }

  /** Choose the group whose dead letters the list will show. */
  #choose(group) {
    this.#group = group;
    this.pager.reset();
    this.#input.value = group;
    if (group === this.#drawn) return;
    this.#drawn = "";
    this.acts.hidden = this.reasons.element.hidden = true;
    this.note.textContent = "";
    wait(this.place); // no letters of another group stand below its name
  }

  async #load() {
    const turn = ++this.#turn;
    try {
      const { letters, next_offset: next } = await call("GET",
        `${lettersOf(this.#group)}${query({ from: this.pager.start, limit: PAGE })}`);
      if (turn === this.#turn) this.#draw(letters, next);
    } catch (error) {
      if (turn === this.#turn) this.#clear(problem(error, HINT));
    }
  }

  #draw(letters, next) {
    // Offsets belong to one group; in another group they would name other letters.
    const kept = this.#drawn === this.#group ? this.place.querySelectorAll("input:checked") : [];
    const chosen = new Set([...kept].map(({ value }) => value));
    this.#drawn = this.#group;
    this.pager.told(next);
    this.reasons.element.hidden = !letters.length && this.pager.isFirst;
    this.reasons.show(lettersOf(this.#group));
    this.acts.hidden = !letters.length && this.pager.isFirst;
    // All dead letters of a name may span several topics; nobody means that by one group.
    this.redriveAll.hidden = this.dropAll.hidden = !this.#group.includes("/");
    this.note.textContent = letters.length ? `${counted(letters.length, "dead letter")} of ${this.#group} on this page` : "";
    const content = table(`Dead letters of ${this.#group}`, [
      { head: "", label: "Choose", cell: box },
      { head: "Died", kind: "mono", cell: (one) => el("span", { title: exact(one.dead_ms) }, time(one.dead_ms)) },
      { head: "Dead letter", kind: "mono", cell: copy },
      { head: "Original", kind: "mono", cell: origin },
      { head: "Topic", kind: "mono name", cell: (one) => one.origin_topic },
      { head: "Attempts", kind: "number", cell: (one) => count(one.attempts) },
      { head: "Reason", kind: "long", cell: (one) => one.reason },
    ], letters, `${this.#group} has no dead letters.`);
    if (!this.place.children[0]?.isEqualNode(content)) arrived(this.place, content);
    for (const one of this.place.querySelectorAll("input")) one.checked = chosen.has(one.value);
  }

  #clear(content) {
    this.acts.hidden = this.reasons.element.hidden = true;
    this.pager.told(null);
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

  /** Redrive or drop the letters at the offsets, or all if there are none given, after a question. */
  #change(verb, offsets) {
    return attempt(async () => {
      const what = offsets ? `${counted(offsets.length, "dead letter")} of ${this.#group}` : `all dead letters of ${this.#group}`;
      const [question, text, yes] = verb === "redrive"
        ? [`Redrive ${what}?`, "The group receives them again, with all attempts left.", "Redrive"]
        : [`Drop ${what}?`, "They are deleted, and this cannot be undone.", "Drop"];
      if (!(await confirm(question, text, yes))) return;
      const parts = offsets ? Array.from({ length: Math.ceil(offsets.length / PART) }, (_, at) => ({ offsets: offsets.slice(at * PART, (at + 1) * PART) })) : [{ all: true }];
      const done = { redriven: 0, dropped: 0, left: 0 };
      for (const part of parts) {
        const { redriven = 0, dropped = 0, left = 0 } = await call("POST", `${lettersOf(this.#group)}/${verb}`, part);
        Object.assign(done, { redriven: done.redriven + redriven, dropped: done.dropped + dropped, left: done.left + left });
      }
      tell(verb === "redrive"
        ? `Redriven: ${count(done.redriven)}${done.left ? `; ${count(done.left)} stay, since their group is gone or full` : ""}.`
        : `Dropped: ${count(done.dropped)}.`);
      this.#choose(this.#group);
      await Promise.all([this.#load(), this.feed.renew()]);
    });
  }
}
