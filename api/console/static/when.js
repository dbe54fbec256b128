// When to deliver: after a delay or at a time. Two fields, of which one is used.

import { el, field } from "./dom.js";

/** A fieldset with the names `delay` and `at`. */
export function whenFields(delay) {
  return el("fieldset", { class: "when" },
    el("legend", { class: "hidden" }, "When"),
    field("After", { name: "delay", value: delay, placeholder: "90s, 1h30m, 2d", hint: "if it is empty, the time counts" }),
    field("At", { name: "at", type: "datetime-local", step: 1, hint: "in this browser's zone" }));
}

/** The API's fields: {delay}, {deliver_at_ms}, or none for immediate delivery. */
export function when({ delay, at }) {
  if (delay) return { delay: delay.trim() };
  return at ? { deliver_at_ms: new Date(at).getTime() } : {};
}
