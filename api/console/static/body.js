// The body of a message: JSON is indented, and any body can be copied as it was sent.

import { copy } from "./clipboard.js";
import { button, el } from "./dom.js";
import { count } from "./format.js";
import { attempt, tell } from "./notices.js";

const SHOWN_MAX = 50_000; // characters; more would make the page slow
const PARSED_MAX = 1_000_000; // characters; a longer one is not looked at for JSON

const TOKENS = /"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/g;

/** The beginning of JSON with indentation, all its tokens as they were sent; null for other texts. */
function indented(text) {
  if (text.length > PARSED_MAX || !/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  let depth = 0;
  let before = "";
  let found = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [token] of text.matchAll(TOKENS)) {
    const opened = before === "{" || before === "[";
    const closes = token === "}" || token === "]";
    if (opened && !closes) depth += 1;
    else if (closes && !opened) depth -= 1;
    const gap = opened !== closes || before === "," ? line() : before === ":" ? " " : "";
    before = token;
    found += `${token === "," || token === ":" ? "" : gap}${token}`;
    if (found.length > SHOWN_MAX) break; // a few thousand brackets in each other are gigabytes of spaces
  }
  return found.trimStart();
}

/** The body of a message with a button to copy it. */
export function bodyOf(message) {
  const text = message.body ?? message.body_base64 ?? "";
  if (!text) return el("p", { class: "quiet" }, "empty");
  const pretty = message.body === undefined ? null : indented(text);
  const whole = pretty ?? text;
  const shown = el("pre", { class: "body", tabindex: 0, role: "region", "aria-label": "Body" }, whole.slice(0, SHOWN_MAX));
  const notes = [
    pretty && "JSON, indented", message.body === undefined && "bytes, as base64",
    whole.length > SHOWN_MAX && `the first ${count(SHOWN_MAX)} characters${pretty ? "" : ` of ${count(whole.length)}`}`,
  ].filter(Boolean);
  return el("div", { class: "stack tight" }, shown, el("div", { class: "row spread" },
    el("span", { class: "quiet small" }, notes.join(", ")),
    button("Copy", () => attempt(async () => {
      await copy(text);
      tell("The body is copied, as it was sent.");
    }), { "aria-label": "Copy the body" })));
}
