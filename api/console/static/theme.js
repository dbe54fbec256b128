// Light or dark: the system's choice, or the reader's, which the browser remembers.

import { ofBrowser } from "./storage.js";

const CHOICE = "timerwheel-theme";
const root = document.documentElement;

function apply(choice) {
  if (choice) root.dataset.theme = choice;
  else delete root.dataset.theme;
}

/** Apply the theme before anything is drawn. */
export function restore() {
  apply(ofBrowser.getItem(CHOICE) ?? "");
}

/** Let a select choose the theme; `changed` is called when it or the system's theme changes. */
export function install(select, changed) {
  select.value = root.dataset.theme ?? "";
  select.addEventListener("change", () => {
    if (select.value) ofBrowser.setItem(CHOICE, select.value);
    else ofBrowser.removeItem(CHOICE);
    apply(select.value);
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
}
