// Puts texts on the clipboard.

import { el } from "./dom.js";

/**
 * Copy a text. A browser offers its clipboard only to pages of this machine or over HTTPS; to others it lends the copying of
 * what is selected. An error says so if it refuses both.
 */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const before = document.activeElement;
  const place = el("textarea", { class: "hidden", readonly: true, "aria-hidden": "true" }, text);
  ([...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body).append(place); // outside of a dialog nothing can be selected
  place.select();
  const isCopied = document.execCommand("copy");
  place.remove();
  before?.focus({ preventScroll: true });
  if (!isCopied) throw new Error("The browser does not let this page copy. Select the text, and copy it by hand.");
  return undefined;
}
