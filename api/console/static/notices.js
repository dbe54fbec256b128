// Notices in a corner or at the foot of a dialog, and questions in a dialog.

import { tokenFault } from "./api.js";
import { button, el, field, form } from "./dom.js";

const SHOWN_MS = 8_000;

/** Report a success, with an optional action {text, act}. */
export function tell(text, action) {
  show("done", text, action);
}

/** Report an error; the notice stays until it is dismissed. */
function complain(error) {
  const faults = (error.faults ?? []).map((fault) => `item ${fault.index}: ${fault.detail}`);
  show("bad", [error.message, ...faults].join("\n"), null, error.title);
}

/** Run `act` and report its failure; returns its result, or undefined. */
export async function attempt(act) {
  try {
    return await act();
  } catch (error) {
    complain(error);
    return undefined;
  }
}

function show(kind, text, action, title) {
  const notice = el("div", { class: "notice", "data-kind": kind, role: kind === "bad" ? "alert" : null },
    title ? el("strong", {}, title) : null, el("p", {}, text),
    el("div", { class: "row" },
      action ? button(action.text, () => { notice.remove(); return action.act(); }) : null,
      button("Dismiss", () => notice.remove())));
  if (kind === "bad") for (const other of document.querySelectorAll('.notice[data-kind="bad"]')) other.remove(); // it is old
  const foot = place();
  foot.append(notice);
  // At the foot of a dialog the notice shrinks the content above it, where the reader is.
  if (foot.parentElement !== document.body) document.activeElement.scrollIntoView({ block: "nearest" });
  if (kind !== "bad") expire(notice);
}

/** A notice stays while it has the pointer or the focus. */
function expire(notice) {
  setTimeout(() => (notice.matches(":hover, :focus-within") ? expire(notice) : notice.remove()), SHOWN_MS);
}

/**
 * Notices go to the topmost dialog, because nothing outside of it can be seen or used. Each dialog has a place for
 * them that covers nothing. Older notices stay behind the dialog.
 */
function place() {
  const uppermost = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body;
  return uppermost.querySelector(":scope > .notices");
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) place().lastElementChild?.remove();
});

/** A dialog that is removed when it closes. Escape closes it, and the focus returns to where it was. */
export function open(title, content, { side = false } = {}) {
  const before = document.activeElement?.dataset.key;
  const dialog = el("dialog", { class: side ? "side" : null, "aria-label": title },
    el("div", { class: "head" }, el("h2", {}, title),
      el("button", { type: "button", class: "plain", "aria-label": "Close", on: { click: () => dialog.close() } }, "✕")),
    el("div", { class: "inside" }, content),
    el("div", { class: "notices", "aria-live": "polite" }));
  dialog.addEventListener("close", () => {
    const done = dialog.querySelectorAll('.notice[data-kind="done"]'); // errors of the dialog end with it
    dialog.remove();
    place().append(...done);
    // If the list was redrawn in between, another button replaced the one that opened this dialog.
    if (before && document.activeElement === document.body) {
      document.querySelector(`[data-key="${CSS.escape(before)}"]`)?.focus({ preventScroll: true });
    }
  });
  // A click outside closes a read-only dialog; a form would lose its input. The second click of a double click was meant
  // for the question that was over the dialog.
  if (side) dialog.addEventListener("mousedown", ({ target, detail: clicks }) => target === dialog && clicks < 2 && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
  if (!side) dialog.querySelector("input, select, textarea")?.focus(); // not the close button
  return dialog;
}

/** Ask before an action that cannot be undone; true if the reader agrees. */
export function confirm(title, text, verb, kind = "danger") {
  return new Promise((answer) => {
    let agreed = false;
    const yes = el("button", { type: "button", class: kind, on: { click: () => { agreed = true; dialog.close(); } } }, verb);
    const no = el("button", { type: "button", on: { click: () => dialog.close() } }, "Leave it");
    const dialog = open(title, el("div", { class: "stack" }, el("p", {}, text), el("div", { class: "row" }, yes, no)));
    dialog.addEventListener("close", () => answer(agreed));
    no.focus();
  });
}

/** Ask for a token; null if the reader gives none. */
export function askToken(detail, present) {
  return new Promise((answer) => {
    let given = null;
    const fault = el("p", { class: "problem", id: "token-fault", role: "alert", hidden: true });
    const asked = form({ class: "stack" }, ({ token = "" }) => {
      const text = token.trim();
      fault.textContent = tokenFault(text);
      fault.hidden = !fault.textContent;
      input.ariaInvalid = String(!fault.hidden);
      if (!fault.hidden) return input.focus();
      given = text;
      return dialog.close();
    },
      el("p", {}, detail),
      field("Token", {
        name: "token", type: "password", value: present ?? "", "aria-describedby": fault.id,
        hint: "Kept in this tab until it is closed. “timerwheel tokens create” creates one.",
      }),
      fault,
      el("div", { class: "row" }, el("button", { class: "primary" }, "Use this token")));
    const input = asked.querySelector("input");
    const dialog = open("Token", asked);
    dialog.addEventListener("close", () => answer(given));
  });
}
