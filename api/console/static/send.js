// Send a test message.

import { call } from "./api.js";
import { el, field, form } from "./dom.js";
import { time } from "./format.js";
import { attempt, open, tell } from "./notices.js";
import { when, whenFields } from "./when.js";

/** Lines `name=value` as an object. */
function properties(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return Object.fromEntries(lines.map((line) => {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`“${line}”: write a property as name=value`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  }));
}

/** The request body from the fields; empty fields are left out. */
function draft(given) {
  const { topic, body, tags, keys, dedup_key, properties: lines = "" } = given;
  const message = { topic, body, ...when(given), tags, keys, dedup_key };
  return lines.trim() ? { ...message, properties: properties(lines) } : message;
}

/** Ask for a message and send it; `show` opens one by its id, `sent` is called after. */
export function sendTest(show, sent) {
  const send = async (given) => {
    const accepted = await call("POST", "/v1/messages", draft(given));
    dialog.close();
    const words = accepted.state === "scheduled" ? `due ${time(accepted.due_ms)}` : accepted.state;
    tell(`${accepted.duplicate ? "It was sent before" : "Sent"} to ${accepted.topic}: ${words}.`, { text: "Show it", act: () => show(accepted.id) });
    sent();
  };
  const dialog = open("Send a test message", form({ class: "stack" }, (given) => attempt(() => send(given)),
    field("Topic", { name: "topic", required: true, list: "topic-names", value: "test" }),
    field("Body", { name: "body", rows: 4 }),
    whenFields("30s"),
    el("details", {}, el("summary", {}, "Tags, keys, properties"), el("div", { class: "stack" },
      field("Tags", { name: "tags" }), field("Keys", { name: "keys", hint: "separated by spaces" }),
      field("Deduplication key", { name: "dedup_key", hint: "a second send with it stores nothing" }),
      field("Properties", { name: "properties", rows: 3, placeholder: "name=value, one per line" }))),
    el("div", { class: "row" }, el("button", { class: "primary" }, "Send"))));
}
