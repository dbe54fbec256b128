// Which dead letters the list shows: group, topic, reason, key and time, as the address says it. What to ask the
// service for, and the words for it.

import { path } from "./api.js";
import { natural, span } from "./format.js";

const FIELDS = ["group", "topic", "reason", "key", "from", "to"]; // of the address

export class LetterFilter {
  /** `given` are parameters of the address, of which others than a filter's are left out. */
  constructor(given, nowMs) {
    this.given = Object.fromEntries(FIELDS.filter((name) => given[name]).map((name) => [name, given[name]]));
    const { group = "", topic, reason, key, from, to } = this.given;
    Object.assign(this, { group, topic, reason, key, fromMs: natural(from), toMs: natural(to), nowMs });
  }

  /** The group's topic and name; without a topic all groups of this name are meant. */
  get #names() {
    return this.group.includes("/") ? this.group.split("/", 2) : [this.topic ?? null, this.group];
  }

  /** The path of the dead letters. */
  get place() {
    const [topic, group] = this.#names;
    return topic === null ? path`/v1/groups/${group}/dead-letters` : path`/v1/topics/${topic}/groups/${group}/dead-letters`;
  }

  /** Whether the letters are of one topic's group. */
  get isOfOne() {
    return this.#names[0] !== null;
  }

  /** The group in words: topic/group, or the name alone. */
  get name() {
    return this.#names.filter((part) => part !== null).join("/");
  }

  /** Whether some of the group's letters may not be listed. */
  get isNarrow() {
    return this.parts.length > 0;
  }

  /** The conditions, as a query and in the content of a call. */
  get conditions() {
    return { reason: this.reason, key: this.key, from_ms: this.fromMs, until_ms: this.toMs };
  }

  /** The parameters of the address with other values for some of them. */
  with(changed) {
    return { ...this.given, ...changed };
  }

  /** Each condition as {name, text, without}: `without` are the parameters of the address if it is taken away. */
  get parts() {
    const { reason, key, fromMs, toMs, nowMs } = this;
    const hasTime = fromMs !== undefined || toMs !== undefined;
    return [
      this.given.topic && !this.group.includes("/") && { name: "topic", text: `topic ${this.given.topic}`, without: this.with({ topic: undefined }) },
      reason && { name: "reason", text: `reason contains “${reason}”`, without: this.with({ reason: undefined }) },
      key && { name: "key", text: `key ${key}`, without: this.with({ key: undefined }) },
      hasTime && { name: "time", text: `died ${span(fromMs, toMs, nowMs)}`, without: this.with({ from: undefined, to: undefined }) },
    ].filter(Boolean);
  }
}
