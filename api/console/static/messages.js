// Messages: search by id or key, and pages of scheduled messages in due order.

import { call, path, query } from "./api.js";
import { button, el, field, form, replace } from "./dom.js";
import { distance, exact, time } from "./format.js";
import { showFound, showMessage } from "./message.js";
import { attempt } from "./notices.js";
import { now } from "./now.js";
import { recallMany } from "./recall.js";
import { Pager } from "./pager.js";
import { problem, table } from "./table.js";

const PAGE = 50;
const PREVIEW = 96;
const ID = /^[0-9a-f]{24}$/;
const ALL = { title: "All waiting messages" };
const HINT = "Enter one of the token's topics above, and press Find.";

function preview(message) {
  const text = message.body ?? (message.body_base64 === undefined ? "" : `base64 ${message.body_base64}`);
  return text.length > PREVIEW ? `${text.slice(0, PREVIEW)}…` : text;
}

export class Messages {
  name = "messages";
  title = "Messages";
  #asked = ALL; // {title, topic, fromMs, toMs, count}
  #turn = 0; // number of the newest request; answers to older ones are ignored

  constructor() {
    this.search = form({ class: "search", role: "search" }, (given) => attempt(() => this.#find(given)),
      field("Id or key", { name: "id", placeholder: "24 hex digits, or a deduplication key" }),
      field("Topic", { name: "topic", list: "topic-names", placeholder: "for a key, or alone" }),
      el("button", { class: "primary" }, "Find"));
    this.heading = el("h3", { tabindex: "-1" });
    this.asOf = el("p", { class: "quiet small" });
    this.place = el("div", {}, el("p", { class: "empty" }, "Loading"));
    this.all = button("All waiting messages", () => this.#list(ALL), { hidden: true });
    this.pager = new Pager(undefined, () => this.#turned());
    this.ask(ALL);
    this.panel = el("div", { class: "stack" }, this.search,
      el("div", { class: "row" },
        el("div", { class: "row push" }, this.heading, this.asOf),
        el("div", { class: "row" }, this.all,
          button("Renew", () => this.load()),
          button("Recall many…", () => recallMany(this.#asked, () => this.load())))),
      this.place, this.pager.row);
  }

  show() {
    return this.load();
  }

  hide() {}

  /** Choose the scheduled messages of {topic} or due in {fromMs, toMs}; the next request loads their first page. */
  ask(asked) {
    this.#asked = asked;
    this.pager.reset();
    this.heading.textContent = asked.title;
    this.all.hidden = asked === ALL;
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

  /** Open a message by its id. */
  open(id) {
    return attempt(() => showMessage(id, () => this.load()));
  }

  /** Switch and scroll to the list. */
  focus() {
    this.heading.focus({ preventScroll: true });
    this.heading.scrollIntoView({ block: "center" });
  }

  #list(asked) {
    this.ask(asked);
    return this.load();
  }

  async #turned() {
    await this.load();
    this.focus();
  }

  #draw(content, cursor, asOf) {
    this.asOf.textContent = asOf;
    this.pager.told(cursor);
    replace(this.place, content);
  }

  #table(messages) {
    const nowMs = now();
    return table(this.#asked.title, [
      { head: "Due", kind: "mono", cell: (one) => el("span", { title: exact(one.due_ms) }, time(one.due_ms)) },
      { head: "", kind: "quiet line", cell: (one) => distance(one.due_ms, nowMs) },
      { head: "Id", kind: "mono", cell: (one) => button(one.id, () => this.open(one.id), { class: "link", "data-key": one.id }) },
      { head: "Topic", kind: "mono name", cell: (one) => one.topic },
      { head: "Tags", kind: "name", cell: (one) => one.tags ?? "" },
      { head: "Key", kind: "mono cut", cell: (one) => one.dedup_key ?? one.keys?.join(" ") ?? "" },
      { head: "Body", kind: "mono cut", cell: preview },
    ], messages, this.#emptyWords());
  }

  #emptyWords() {
    const { topic, fromMs, count } = this.#asked;
    if (!this.pager.isFirst) return "No more: these have fired.";
    if (count) return "No messages here: they have fired or were recalled, or the slot holds leases of consumer groups.";
    if (topic) return `No messages are waiting for ${topic}.`;
    return fromMs === undefined ? "No messages are waiting. Send a test message to see one here." : "No message is due in this period.";
  }

  async #find({ id = "", topic = "" }) {
    const [wanted, named] = [id.trim(), topic.trim()];
    if (wanted && named) {
      showFound(await call("GET", path`/v1/topics/${named}/keys/${wanted}`), () => this.load());
    } else if (wanted) {
      if (!ID.test(wanted)) throw new Error("That is not an id; an id has 24 hex digits. To search for a key, give its topic too.");
      await showMessage(wanted, () => this.load());
    } else await this.#list(named ? { title: `Waiting for ${named}`, topic: named } : ALL);
  }
}
