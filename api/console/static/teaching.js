// What an empty list teaches: the commands that fill it, to copy, and a button that sends messages to look at.

import { call, token } from "./api.js";
import { copy } from "./clipboard.js";
import { button, el } from "./dom.js";
import { attempt, tell } from "./notices.js";
import { may } from "./rights.js";

const USUAL = ["127.0.0.1:8686", "localhost:8686"]; // where the command line looks for a service
const DEMO_TOPIC = "demo";
const DEMO_MESSAGES = 1_000;
const DEMO_MS = 120_000;
const DEMO_PART = 250; // messages of one request

/** A command with a button that copies it. */
function command(text) {
  return el("li", {}, el("code", {}, text), button("Copy", () => attempt(async () => {
    await copy(text);
    tell("Copied.");
  }), { "aria-label": `Copy ${text}`, "data-key": `copy ${text}` }));
}

/** What the commands need to reach this service: its URL, unless they look for it there by themselves. */
const reaching = () => (location.protocol === "http:" && USUAL.includes(location.host) ? [] : [`export TIMERWHEEL_URL=${location.origin}`]);

const hint = () => el("p", { class: "small" }, "In the directory with the source, ", el("code", {}, "timerwheel"), " is ", el("code", {}, ".venv/bin/timerwheel"), ".",
  token() ? [" It takes the token from the variable ", el("code", {}, "TIMERWHEEL_TOKEN"), "."] : null);

/** The words of an empty list, and commands below them; `more` are elements after these. */
export function teaching(words, commands, ...more) {
  return el("div", { class: "stack" }, el("p", {}, words),
    el("ul", { class: "commands", "aria-label": "Commands for a terminal" }, [...reaching(), ...commands].map(command)), hint(), ...more);
}

/** The words of a list in which nothing meets its filter, and `href`, which leads to all of it. */
export const nothing = (words, href) =>
  el("div", { class: "stack tight" }, [words].flat().map((text) => el("p", {}, text)), el("p", {}, el("a", { class: "link", href }, "Clear the filter")));

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
