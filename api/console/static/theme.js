// Light or dark: as the system has it, or as the reader chose, which the browser remembers.

const CHOICE = "timerwheel-theme";
const root = document.documentElement;

function apply(choice) {
  if (choice) root.dataset.theme = choice;
  else delete root.dataset.theme;
}

/** Before anything is drawn. */
export function restore() {
  apply(localStorage.getItem(CHOICE) ?? "");
}

/** Let a select choose the theme; `changed` is called after it did, or the system's changed. */
export function install(select, changed) {
  select.value = root.dataset.theme ?? "";
  select.addEventListener("change", () => {
    if (select.value) localStorage.setItem(CHOICE, select.value);
    else localStorage.removeItem(CHOICE);
    apply(select.value);
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
}
