// Messages: search by id or key, and pages of those that meet a filter; recall of the scheduled ones among them.

import * as address from "./address.js";
import { call, query } from "./api.js";
import { Chips } from "./chips.js";
import { arrived, button, el, field, form, select, wait } from "./dom.js";
import { counted, distance, exact, fieldTime, localTime, time } from "./format.js";
import { ANY, Filter, happened, NEWEST, OLDEST, orders, SCHEDULED, stateWithout } from "./filter.js";
import { isHalf, keyOf, remember, stateSign } from "./message.js";
import { attempt, confirm, tell } from "./notices.js";
import { now } from "./now.js";
import { opener } from "./panels.js";
import { Picks } from "./picks.js";
import { recallMany } from "./recall.js";
import { Pager } from "./pager.js";
import { changes as rights, offer } from "./rights.js";
import { problem, table } from "./table.js";
import { demoButton, nothing, teaching } from "./teaching.js";

const PAGE = 50;
const PREVIEW = 96;
const SEARCH_MS = 4_000; // pages of the service may be empty: how long to go on by itself
const TEACHES = [
  "timerwheel send orders 'close order 17' --delay 3s",
  "timerwheel receive orders --follow",
  "timerwheel top",
];
const ID = /^[0-9a-f]{24}$/;
const HINT = "Enter one of the token's topics above, and press Find.";
const STATES = [SCHEDULED, "delivered", "recalled"].map((state) => [state, state]).concat([[ANY, "any state"]]);
const ORDERS = { [OLDEST]: "oldest first", [NEWEST]: "newest first" };

function preview(message) {
  const text = message.body ?? (message.body_base64 === undefined ? "" : `base64 ${message.body_base64}`);
  return text.length > PREVIEW ? `${text.slice(0, PREVIEW)}…` : text;
}

/** When that happened which its state says. */
const timeOf = (one) => ({ delivered: one.delivered_ms, recalled: one.recalled_ms })[one.state] ?? one.due_ms;

/** Read pages of the service until there are `PAGE` messages, or no more, or the time is over: {messages, cursor}. */
async function read(given, start, goesOn) {
  const began = performance.now();
  const found = [];
  let cursor = start;
  do {
    const page = await call("GET", `/v1/messages${query({ ...given, limit: PAGE - found.length, cursor })}`);
    found.push(...page.messages);
    cursor = page.cursor;
  } while (cursor !== null && found.length < PAGE && goesOn() && performance.now() - began < SEARCH_MS);
  return { messages: found, cursor };
}

export class Messages {
  name = "messages";
  title = "Messages";
  #asked = new Filter({}, now());
  #turn = 0; // number of the newest request; answers to older ones are ignored
  #sought = null; // the key of a search, whose message is opened if it is the only one

  constructor() {
    this.search = form({ class: "search wide", role: "search", on: { input: ({ target }) => this.#typed(target), change: () => this.#offerOrders() } },
      (given) => attempt(() => this.#find(given)),
      field("Id or key", { name: "key", placeholder: "order-4711", class: "mono" }),
      field("Topic", { name: "topic", list: "topic-names" }),
      select("State", "state", STATES),
      field("Tag", { name: "tag", placeholder: "paid || shipped" }),
      field("From", { name: "from", type: "datetime-local", step: 1 }),
      field("Until", { name: "to", type: "datetime-local", step: 1 }),
      select("Order", "order", Object.entries(ORDERS)),
      el("div", { class: "row" }, el("button", { class: "primary" }, "Find"), button("Clear", () => this.#clear())));
    this.heading = el("h3", { tabindex: "-1" });
    this.asOf = el("p", { class: "quiet small", role: "status" });
    this.place = el("div");
    this.chips = new Chips(this.heading);
    this.actions = el("div", { class: "row" });
    this.picks = new Picks(this.place, () => this.#offerActs());
    this.pager = new Pager(undefined, () => this.#turned());
    this.panel = el("div", { class: "stack" }, this.search,
      el("div", { class: "row" },
        el("div", { class: "row push" }, this.heading, this.asOf),
        el("div", { class: "row" }, button("Renew", () => this.load()), this.actions)),
      this.chips.element, this.place, this.pager.row);
    this.arrive({});
    rights.addEventListener("change", () => this.#offerActs());
  }

  show() {
    return this.load();
  }

  hide() {}

  /** Take the filter from the address; the next request loads its first page. */
  arrive(given) {
    this.#turn += 1;
    this.#asked = new Filter(given, now());
    this.pager.reset();
    this.heading.textContent = this.#asked.title;
    this.#fillIn();
    this.chips.draw("messages", this.#asked.parts);
    this.picks.clear();
    this.asOf.textContent = "";
    wait(this.place); // no rows of another filter stand below the heading
  }

  /** Load the current page. */
  async load() {
    const turn = ++this.#turn;
    const asked = this.#asked;
    const isNewest = () => turn === this.#turn;
    if (asked.lacks) return this.#draw(el("p", { class: "empty" }, asked.lacks), null, "");
    this.place.ariaBusy = "true";
    try {
      const { messages, cursor } = await read(asked.query, this.pager.start, isNewest);
      if (!isNewest()) return undefined;
      this.#draw(this.#table(messages, cursor), cursor, this.#words(messages, cursor));
      if (asked.key && asked.key === this.#sought && messages.length === 1 && cursor === null) this.#open(messages[0]);
    } catch (error) {
      if (isNewest()) this.#draw(problem(error, asked.topic ? "" : HINT), null, "");
    }
    if (isNewest()) this.#sought = null;
    return undefined;
  }

  /** What is beside the heading: the time of the list, and whether the search has not come to its end. */
  #words(messages, cursor) {
    const short = cursor !== null && messages.length < PAGE;
    const number = messages.length ? `${counted(messages.length, "message")} on this page, ` : "";
    return `${number}as of ${time(now())}${short && messages.length ? "; the search goes on with Next" : ""}`;
  }

  #open(message) {
    remember(message);
    address.go(address.toPanel("message", message.id));
  }

  /** The fields say what is filtered. */
  #fillIn() {
    const { topic, tag, key, state, order, fromMs, toMs, given } = this.#asked;
    const { elements } = this.search;
    if (![...elements.state.options].some(({ value }) => value === state)) elements.state.append(el("option", { value: state }, state));
    const texts = { topic, tag, key, state, from: localTime(fromMs), to: given.overdue ? "" : localTime(toMs) };
    for (const [name, text] of Object.entries(texts)) elements[name].value = text ?? "";
    this.times = { from: elements.from.value, to: elements.to.value };
    this.hadKey = Boolean(key);
    this.#offerOrders();
    elements.order.value = order;
  }

  /** A key is looked for in every state, unless the reader has chosen one. */
  #typed(target) {
    const { key, state } = this.search.elements;
    const isKey = Boolean(key.value.trim());
    if (target !== key || isKey === this.hadKey) return;
    this.hadKey = isKey;
    if (state.value === stateWithout(!isKey)) state.value = stateWithout(isKey);
    this.#offerOrders();
  }

  #offerOrders() {
    const { key, state, order, from, to } = this.search.elements;
    const offered = orders(state.value, key.value.trim());
    const before = order.value;
    order.replaceChildren(...offered.map((one) => el("option", { value: one }, ORDERS[one])));
    if (this.#asked.state === state.value && offered.includes(before)) order.value = before;
    order.closest("label").hidden = offered.length < 2;
    const word = happened(state.value);
    from.previousElementSibling.textContent = word ? `${word} from` : "From";
    to.previousElementSibling.textContent = word ? `${word} until` : "Until";
  }

  /** The buttons that the token may use; those for chosen messages appear with the first choice. */
  #offerActs() {
    const chosen = this.picks.chosen;
    const asked = this.#asked;
    this.actions.replaceChildren(...offer("send",
      ...(chosen.length ? [button(`Recall ${counted(chosen.length, "chosen message")}`, () => this.#recall(chosen), { class: "danger", "data-key": "recall chosen" })] : []),
      ...(asked.hasScheduled ? [button("Recall many…", () => recallMany(asked, () => this.load()), { "data-key": "recall many" })] : [])));
  }

  #recall(ids) {
    return attempt(async () => {
      const question = `Recall ${counted(ids.length, "message")}?`;
      if (!(await confirm(question, "They will not be delivered, and this cannot be undone.", "Recall"))) return;
      const { recalled, results } = await call("POST", "/v1/messages/recall", { ids });
      const missed = results.length - recalled;
      tell(`Recalled ${counted(recalled, "message")}${missed ? `; ${missed} were too late` : ""}.`);
      this.picks.clear();
      await this.load();
    });
  }

  /** Switch and scroll to the list. */
  focus() {
    this.heading.focus({ preventScroll: true });
    this.heading.scrollIntoView({ block: "center" });
  }

  async #turned() {
    await this.load();
    this.focus();
  }

  #draw(content, cursor, asOf) {
    this.asOf.textContent = asOf;
    this.pager.ends(cursor);
    arrived(this.place, content);
    this.picks.drawn();
  }

  #table(messages, cursor) {
    const nowMs = now();
    const { state } = this.#asked;
    const isMixed = !happened(state);
    const isRecallable = (one) => one.state === SCHEDULED && !isHalf(one);
    const ticks = messages.some(isRecallable) ? offer("send", {
      head: "", label: "Choose", cell: (one) => (isRecallable(one) ? this.picks.box(one.id) : null),
    }) : [];
    const isOpen = (one) => one.state === SCHEDULED && isHalf(one);
    return table(this.#asked.title, [
      ...ticks,
      ...(isMixed ? [{ head: "State", kind: "line", cell: (one) => stateSign(one) }] : []),
      { head: isMixed ? "Time" : happened(state), kind: "mono", cell: (one) => (isOpen(one) ? "open transaction" : el("span", { title: exact(timeOf(one)) }, time(timeOf(one)))) },
      { head: "", kind: "quiet line", cell: (one) => (isOpen(one) ? null : distance(timeOf(one), nowMs)) },
      { head: "Id", kind: "mono", cell: (one) => this.#link(one) },
      { head: "Topic", kind: "mono name", cell: (one) => one.topic },
      { head: "Tags", kind: "name", cell: (one) => one.tags ?? "" },
      { head: "Key", kind: "mono cut", cell: keyOf },
      { head: "Body", kind: "mono cut", cell: preview },
    ], messages, this.#empty(cursor));
  }

  /** Recalled and delivered messages may be gone when the link is followed, and a token may see them only here. */
  #link(message) {
    const link = opener("message", message.id);
    link.addEventListener("click", () => remember(message));
    return link;
  }

  #empty(cursor) {
    if (cursor !== null) return "Nothing found yet. There is more to search: press Next.";
    if (!this.pager.isFirst) return "No more messages.";
    if (this.#asked.isWhole) return teaching(this.#asked.none, TEACHES, demoButton(() => this.load()));
    const gone = this.#asked.given.slot ? ["They have fired or were recalled, or the slot holds leases of consumer groups."] : [];
    return nothing([this.#asked.none, ...gone], address.to("messages"));
  }

  async #find({ key: text = "", topic = "", state, tag = "", from = "", to = "", order }) {
    const wanted = text.trim();
    if (ID.test(wanted) && wanted !== this.#asked.key) return address.go(address.toPanel("message", wanted));
    const hash = address.to("messages", {
      state: state === stateWithout(wanted) ? undefined : state, topic: topic.trim(), tag: tag.trim(), key: wanted, ...this.#when(from, to),
      order: order === orders(state, wanted)[0] ? undefined : order,
    });
    this.#sought = wanted;
    if (hash === location.hash) return this.load();
    return address.go(hash);
  }

  /** List all scheduled messages, with empty fields. */
  #clear() {
    const hash = address.to("messages");
    if (location.hash && location.hash !== hash) return address.go(hash);
    this.arrive({});
    return this.load();
  }

  /** The parameters of the address for two times of the form; a period that was not touched stays to the millisecond. */
  #when(from, to) {
    const { given, fromMs: hadFromMs, toMs: hadToMs } = this.#asked;
    if (from === this.times.from && to === this.times.to) return { slot: given.slot, overdue: given.overdue, from: given.from, to: given.to };
    const [fromMs, toMs] = [fieldTime(from, hadFromMs), fieldTime(to, hadToMs)];
    if (fromMs >= toMs) throw new Error("The time ends before it begins. Choose a later end, or an earlier beginning.");
    return { from: fromMs, to: toMs };
  }
}
