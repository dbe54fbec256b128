// Which messages the list shows: state, topic, tag, key and time, as the address says it. What to ask the service for,
// and the words for it.

import { natural, span } from "./format.js";
import { SLOT_MS } from "./wheel/slots.js";

export const ANY = "any"; // every state
export const SCHEDULED = "scheduled";
export const NEWEST = "newest";
export const OLDEST = "oldest";

const STATES = "scheduled,delivered,recalled";
const FIELDS = ["state", "topic", "tag", "key", "slot", "overdue", "from", "to", "order"]; // of the address
const TIMES = ["slot", "overdue", "from", "to"];
const HAPPENED = { [SCHEDULED]: "Due", delivered: "Delivered", recalled: "Recalled" };

/** The parameters of the address for a slot of the wheel, or for a period. */
export function whenDue({ slot, fromMs, toMs }) {
  return slot ? { slot: `${slot.level}-${slot.startMs}` } : { from: fromMs, to: toMs };
}

/** The state that is meant if the address has none: wherever a key is, and else what is to come. */
export const stateWithout = (key) => (key ? ANY : SCHEDULED);

/** What the time of a message in this state is called; a list of several states has no one word for it. */
export const happened = (state) => HAPPENED[state] ?? "";

/** The orders to choose from, the usual one first. Scheduled messages are in due order only, unless there is a key. */
export function orders(state, key) {
  if (key) return [OLDEST, NEWEST];
  return state === "delivered" || state === "recalled" ? [NEWEST, OLDEST] : [OLDEST];
}

/** {fromMs, toMs, name}: the times that the address means, and the name of a period that has one. */
function period({ slot, overdue, from, to }, nowMs) {
  const [, level, startMs] = slot?.match(/^(second|minute|hour|day)-(\d{1,15})$/) ?? [];
  if (level) return { fromMs: Number(startMs), toMs: Number(startMs) + SLOT_MS[level], name: `Slot of ${level === "hour" ? "an" : "a"} ${level}` };
  if (overdue) return { toMs: nowMs, name: "Overdue" };
  return { fromMs: natural(from), toMs: natural(to) };
}

export class Filter {
  /** `given` are parameters of the address, of which others than a filter's are left out. */
  constructor(given, nowMs) {
    this.given = Object.fromEntries(FIELDS.filter((name) => given[name]).map((name) => [name, given[name]]));
    const { topic, tag, key, state = stateWithout(key), order = orders(state, key)[0] } = this.given;
    Object.assign(this, { topic, tag, key, state, order, nowMs });
    const { fromMs, toMs, name } = period(this.given, nowMs);
    Object.assign(this, { fromMs, toMs });
    this.period = this.hasTime || name ? [name, name === "Overdue" ? null : span(fromMs, toMs, nowMs)].filter(Boolean).join(", ") : "";
    this.isNamed = Boolean(name);
  }

  /** Whether nothing is filtered: all scheduled messages. */
  get isWhole() {
    return !Object.keys(this.given).length;
  }

  get hasTime() {
    return this.fromMs !== undefined || this.toMs !== undefined;
  }

  /** Whether scheduled messages are among those listed. */
  get hasScheduled() {
    return this.state === ANY || this.state.split(",").includes(SCHEDULED);
  }

  /** What is missing before the service can answer, in words; empty if nothing is. */
  get lacks() {
    if (this.topic || this.key || this.state === SCHEDULED) return "";
    return "Delivered and recalled messages are listed for a topic or a key: give one above, and press Find.";
  }

  /** Whether the service's own messages are among those listed without topic and key: the wheel counts them too. */
  get reserved() {
    return this.isNamed || undefined;
  }

  /** The query of `GET /v1/messages`, without a page. */
  get query() {
    const { topic, tag, key, fromMs, toMs } = this;
    return {
      state: this.state === ANY ? STATES : this.state, topic, tag, key, from_ms: fromMs, until_ms: toMs,
      order: this.order === OLDEST ? undefined : this.order,
      reserved: this.reserved,
    };
  }

  /** The heading of the list: state, topic and time. The other conditions are beside it, in `parts`. */
  get title() {
    if (this.isWhole) return "All scheduled messages";
    const { topic, state, period: when } = this;
    if (state !== SCHEDULED) return `${state === ANY ? "Messages" : `${HAPPENED[state] ?? state} messages`}${topic ? ` of ${topic}` : ""}${when ? `, ${when}` : ""}`;
    if (when) return `${this.isNamed ? "" : "Due "}${when}${topic ? ` for ${topic}` : ""}`;
    return topic ? `Scheduled for ${topic}` : "Scheduled messages";
  }

  /** Each condition as {name, text, without}: `without` are the parameters of the address if it is taken away. */
  get parts() {
    const { state, topic, tag, key } = this.given;
    const without = (...names) => Object.fromEntries(Object.entries(this.given).filter(([name]) => !names.includes(name)));
    return [
      state && { name: "state", text: state === ANY ? "in any state" : state, without: without("state", "order") },
      topic && { name: "topic", text: `topic ${topic}`, without: without("topic") },
      tag && { name: "tag", text: `tag ${tag}`, without: without("tag") },
      key && { name: "key", text: `key ${key}`, without: without("key", "order") },
      this.period && { name: "time", text: this.isNamed ? this.period : `${happened(this.state).toLowerCase()} ${this.period}`.trim(), without: without(...TIMES) },
    ].filter(Boolean);
  }

  /** What an empty list says. */
  get none() {
    if (this.isWhole) return "No messages are scheduled. Send a test message to see one here.";
    const state = this.given.state ? [] : [this.state === ANY ? "in any state" : this.state];
    return `No message meets all of this: ${[...state, ...this.parts.map(({ text }) => text)].join(", ")}.`;
  }
}
