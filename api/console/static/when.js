// When to deliver: after a while, or at a time. Two fields, of which one is used.

import { el, field } from "./dom.js";

/** A field set with `name`s `delay` and `at`. */
export function whenFields(delay) {
  return el("fieldset", { class: "when" },
    el("legend", { class: "hidden" }, "When"),
    field("After", { name: "delay", value: delay, placeholder: "90s, 1h30m, 2d", hint: "if it is empty, the time counts" }),
    field("At", { name: "at", type: "datetime-local", step: 1, hint: "in this browser's zone" }));
}

/** What the API wants of them: {delay} or {deliver_at_ms}, or nothing: at once. */
export function when({ delay, at }) {
  if (delay) return { delay: delay.trim() };
  return at ? { deliver_at_ms: new Date(at).getTime() } : {};
}
