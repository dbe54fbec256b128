// What happened, said once in a corner; and questions, asked in a dialog.

import { button, el, field, form } from "./dom.js";

const SHOWN_MS = 8_000;
const notices = document.getElementById("notices");

/** Say what was done; an action may follow: {text, act}. */
export function tell(text, action) {
  show("done", text, action);
}

/** Say what went wrong, until it is dismissed. */
function complain(error) {
  const faults = (error.faults ?? []).map((fault) => `item ${fault.index}: ${fault.detail}`);
  show("bad", [error.message, ...faults].join("\n"), null, error.title);
}

/** Run what may fail, and say so if it did; gives its outcome, or undefined. */
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
  if (kind === "bad") for (const other of notices.querySelectorAll('[data-kind="bad"]')) other.remove(); // it is old
  notices.append(notice);
  if (kind !== "bad") setTimeout(() => notice.remove(), SHOWN_MS);
}

/** A dialog that is removed when it closes; Escape closes it, and the focus goes back to where it was. */
export function open(title, content, { side = false } = {}) {
  const before = document.activeElement?.dataset.key;
  const dialog = el("dialog", { class: side ? "side" : null, "aria-label": title },
    el("div", { class: "inside" },
      el("div", { class: "head" }, el("h2", {}, title),
        el("button", { type: "button", class: "plain", "aria-label": "Close", on: { click: () => dialog.close() } }, "✕")),
      content));
  dialog.addEventListener("close", () => {
    dialog.remove();
    placeNotices();
    // A list that was renewed meanwhile has another button in the place of the one that opened this.
    if (before && document.activeElement === document.body) {
      document.querySelector(`[data-key="${CSS.escape(before)}"]`)?.focus({ preventScroll: true });
    }
  });
  // A press on what is behind closes what only shows; a form would lose what was written.
  if (side) dialog.addEventListener("pointerdown", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
  placeNotices();
  if (!side) dialog.querySelector("input, textarea")?.focus(); // and not what closes it
  return dialog;
}

/** What lies outside of the uppermost dialog can be neither seen nor used, so the notices go with it. */
function placeNotices() {
  ([...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body).append(notices);
}

/** Ask before what cannot be undone; true if the reader agrees. */
export function confirm(title, text, verb) {
  return new Promise((answer) => {
    let agreed = false;
    const yes = el("button", { type: "button", class: "danger", on: { click: () => { agreed = true; dialog.close(); } } }, verb);
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
    const asked = form({ class: "stack" }, ({ token = "" }) => {
      given = token.trim();
      dialog.close();
    },
      el("p", {}, detail),
      field("Token", {
        name: "token", type: "password", value: present ?? "", hint: "Kept in this tab until it is closed. “timerwheel tokens create” makes one.",
      }),
      el("div", { class: "row" }, el("button", { class: "primary" }, "Use this token")));
    const dialog = open("Token", asked);
    dialog.addEventListener("close", () => answer(given));
  });
}
