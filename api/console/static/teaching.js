// What an empty list teaches: the commands that fill it, to copy, and a button that sends messages to look at.

import { call } from "./api.js";
import { button, el } from "./dom.js";
import { attempt, tell } from "./notices.js";
import { may } from "./rights.js";

const DEMO_TOPIC = "demo";
const DEMO_MESSAGES = 1_000;
const DEMO_MS = 120_000;
const DEMO_PART = 250; // messages of one request

/** A command with a button that copies it. */
function command(text) {
  return el("li", {}, el("code", {}, text), button("Copy", () => attempt(async () => {
    await navigator.clipboard.writeText(text);
    tell("Copied.");
  }), { "aria-label": `Copy ${text}`, "data-key": `copy ${text}` }));
}

/** The words of an empty list, and commands below them; `more` are elements after these. */
export function teaching(words, commands, ...more) {
  return el("div", { class: "stack" }, el("p", {}, words), commands.length ? el("ul", { class: "commands" }, commands.map(command)) : null, ...more);
}

/** A button that sends messages over the next two minutes; `sent` is called after. Null if the token may not send. */
export function demoButton(sent) {
  if (!may("send")) return null;
  return button(`Send ${DEMO_MESSAGES.toLocaleString("en-US")} demo messages over two minutes`, () => attempt(async () => {
    const messages = Array.from({ length: DEMO_MESSAGES }, (_, number) => ({
      topic: DEMO_TOPIC, body: `demo ${number + 1}`, delay_ms: Math.round((DEMO_MS * (number + 1)) / DEMO_MESSAGES),
    }));
    for (let at = 0; at < messages.length; at += DEMO_PART) await call("POST", "/v1/messages", messages.slice(at, at + DEMO_PART));
    tell(`Sent to the topic ${DEMO_TOPIC}: watch them come to the needle.`);
    sent();
  }), { class: "primary", "data-key": "demo" });
}
