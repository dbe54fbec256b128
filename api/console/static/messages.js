// Messages: search by id or key, and pages of scheduled messages in due order.

import * as address from "./address.js";
import { call, path, query } from "./api.js";
import { button, el, field, form, replace } from "./dom.js";
import { counted, distance, exact, span, time } from "./format.js";
import { remember } from "./message.js";
import { attempt, confirm, tell } from "./notices.js";
import { now } from "./now.js";
import { opener } from "./panels.js";
import { Picks } from "./picks.js";
import { recallMany } from "./recall.js";
import { Pager } from "./pager.js";
import { changes as rights, offer } from "./rights.js";
import { problem, table } from "./table.js";
import { demoButton, teaching } from "./teaching.js";
import { SLOT_MS } from "./wheel/slots.js";

const PAGE = 50;
const PREVIEW = 96;
const TEACHES = [
  "timerwheel send orders 'close order 17' --delay 30m",
  "timerwheel receive orders --follow",
  "timerwheel top",
];
const ID = /^[0-9a-f]{24}$/;
const ALL = "All waiting messages";
const HINT = "Enter one of the token's topics above, and press Find.";

function preview(message) {
  const text = message.body ?? (message.body_base64 === undefined ? "" : `base64 ${message.body_base64}`);
  return text.length > PREVIEW ? `${text.slice(0, PREVIEW)}…` : text;
}

/** The parameters of the address for a slot of the wheel, or for a period. */
export function whenDue({ slot, fromMs, toMs }) {
  return slot ? { slot: `${slot.level}-${slot.startMs}` } : { from: fromMs, to: toMs };
}

/** What the parameters of the address ask for: {topic, fromMs, toMs} and a title. */
function asks({ topic, slot, from, to, overdue }) {
  const [, level, startMs] = slot?.match(/^(second|minute|hour|day)-(\d+)$/) ?? [];
  const of = topic ? ` for ${topic}` : "";
  if (level) {
    const [fromMs, toMs] = [Number(startMs), Number(startMs) + SLOT_MS[level]];
    return { topic, fromMs, toMs, title: `Slot of ${level === "hour" ? "an" : "a"} ${level}, ${span(fromMs, toMs, now())}${of}` };
  }
  if (overdue) return { topic, toMs: now(), title: `Overdue${of}` };
  const [fromMs, toMs] = [from, to].map((text) => (/^\d+$/.test(text ?? "") ? Number(text) : undefined));
  if (fromMs !== undefined || toMs !== undefined) return { topic, fromMs, toMs, title: `Due ${span(fromMs, toMs, now())}${of}` };
  return { topic, title: topic ? `Waiting for ${topic}` : ALL };
}

export class Messages {
  name = "messages";
  title = "Messages";
  #asked = { title: ALL }; // {title, topic, fromMs, toMs}
  #turn = 0; // number of the newest request; answers to older ones are ignored

  constructor() {
    this.search = form({ class: "search", role: "search" }, (given) => attempt(() => this.#find(given)),
      field("Id or key", { name: "id", placeholder: "24 hex digits, or a deduplication key" }),
      field("Topic", { name: "topic", list: "topic-names", placeholder: "for a key, or alone" }),
      el("button", { class: "primary" }, "Find"));
    this.heading = el("h3", { tabindex: "-1" });
    this.asOf = el("p", { class: "quiet small" });
    this.place = el("div", {}, el("p", { class: "empty" }, "Loading"));
    this.all = el("a", { class: "link", href: "#messages", hidden: true }, ALL);
    this.actions = el("div", { class: "row" });
    this.picks = new Picks(this.place, () => this.#offerActs());
    this.#offerActs();
    this.pager = new Pager(undefined, () => this.#turned());
    this.arrive({});
    this.panel = el("div", { class: "stack" }, this.search,
      el("div", { class: "row" },
        el("div", { class: "row push" }, this.heading, this.asOf),
        el("div", { class: "row" }, this.all,
          button("Renew", () => this.load()), this.actions)),
      this.place, this.pager.row);
    rights.addEventListener("change", () => this.#offerActs());
  }

  show() {
    return this.load();
  }

  hide() {}

  /** Take the filter from the address; the next request loads its first page. */
  arrive(given) {
    this.#asked = asks(given);
    this.pager.reset();
    this.heading.textContent = this.#asked.title;
    this.all.hidden = this.#asked.title === ALL;
    this.search.elements.topic.value = given.topic ?? "";
  }

  /** Load the current page. */
  async load() {
    const turn = ++this.#turn;
    const { topic, fromMs, toMs } = this.#asked;
    try {
      const given = { topic, due_from_ms: fromMs, due_to_ms: toMs, limit: PAGE, cursor: this.pager.start };
      const { messages, cursor } = await call("GET", `/v1/messages${query(given)}`);
      if (turn === this.#turn) this.#draw(this.#table(messages), cursor, `as of ${time(now())}`);
    } catch (error) {
      if (turn === this.#turn) this.#draw(problem(error, topic ? "" : HINT), null, "");
    }
  }

  /** The buttons that the token may use; those for chosen messages appear with the first choice. */
  #offerActs() {
    const chosen = this.picks.chosen;
    this.actions.replaceChildren(...offer("send",
      ...(chosen.length ? [button(`Recall ${counted(chosen.length, "chosen message")}`, () => this.#recall(chosen), { class: "danger", "data-key": "recall chosen" })] : []),
      button("Recall many…", () => recallMany(this.#asked, () => this.load()), { "data-key": "recall many" })));
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
    this.pager.told(cursor);
    replace(this.place, content);
    this.picks.drawn();
  }

  #table(messages) {
    const nowMs = now();
    return table(this.#asked.title, [
      ...offer("send", { head: "", label: "Choose", cell: (one) => this.picks.box(one.id) }),
      { head: "Due", kind: "mono", cell: (one) => el("span", { title: exact(one.due_ms) }, time(one.due_ms)) },
      { head: "", kind: "quiet line", cell: (one) => distance(one.due_ms, nowMs) },
      { head: "Id", kind: "mono", cell: (one) => opener("message", one.id) },
      { head: "Topic", kind: "mono name", cell: (one) => one.topic },
      { head: "Tags", kind: "name", cell: (one) => one.tags ?? "" },
      { head: "Key", kind: "mono cut", cell: (one) => one.dedup_key ?? one.keys?.join(" ") ?? "" },
      { head: "Body", kind: "mono cut", cell: preview },
    ], messages, this.#isWhole ? teaching(this.#emptyWords(), TEACHES, demoButton(() => this.load())) : this.#emptyWords());
  }

  /** Whether the list has no filter, so that an empty one means that nothing is scheduled. */
  get #isWhole() {
    return this.#asked.title === ALL && this.pager.isFirst;
  }

  #emptyWords() {
    const { topic, fromMs, toMs } = this.#asked;
    if (!this.pager.isFirst) return "No more: these have fired.";
    if (fromMs !== undefined || toMs !== undefined) {
      return "No messages here: they have fired or were recalled, or the slot holds leases of consumer groups.";
    }
    return topic ? `No messages are waiting for ${topic}.` : "No messages are waiting. Send a test message to see one here.";
  }

  async #find({ id = "", topic = "" }) {
    const [wanted, named] = [id.trim(), topic.trim()];
    if (wanted && named) {
      const found = await call("GET", path`/v1/topics/${named}/keys/${wanted}`);
      remember(found);
      address.go(address.toPanel("message", found.id));
    } else if (wanted) {
      if (!ID.test(wanted)) throw new Error("That is not an id; an id has 24 hex digits. To search for a key, give its topic too.");
      address.go(address.toPanel("message", wanted));
    } else {
      const hash = address.to("messages", { topic: named });
      if (hash === location.hash) await this.load();
      else address.go(hash);
    }
  }
}
