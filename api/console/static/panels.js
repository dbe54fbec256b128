// Panels: one message, group, subscription and so on, at the side of the page. The address says which one is open.

import * as address from "./address.js";
import { el } from "./dom.js";
import { attempt } from "./notices.js";

/** A link that opens a panel. */
export const opener = (kind, id, text = id, given = {}) =>
  el("a", { class: "link", href: address.toPanel(kind, id), "data-key": `${kind} ${id}`, ...given }, text);

let panels = null;

/** Draw a panel again if it is open: something in it has changed. */
export const reopen = (kind, id) => panels.renew(`${kind}:${id}`);

export class Panels {
  #open = null; // kind:id
  #dialog = null;

  /** `kinds` says how to open each kind: an asynchronous function of the id that returns a dialog. */
  constructor(kinds) {
    this.kinds = kinds;
    panels = this;
    address.follows(({ open }) => this.#follow(open));
  }

  async renew(open) {
    if (open !== this.#open) return;
    this.#open = null;
    await this.#follow(open);
  }

  async #follow(open) {
    if (open === this.#open) return;
    this.#open = open;
    this.#close();
    const [kind, id] = open?.split(/:(.*)/s) ?? [];
    if (!id || !Object.hasOwn(this.kinds, kind)) return;
    const dialog = await attempt(() => this.kinds[kind](id));
    if (this.#open !== open) dialog?.close();
    else if (dialog) this.#keep(dialog);
    else this.#leave();
  }

  #keep(dialog) {
    this.#dialog = dialog;
    dialog.addEventListener("close", () => this.#dialog === dialog && this.#leave());
  }

  #leave() {
    this.#dialog = null;
    this.#open = null;
    address.leavePanel();
  }

  #close() {
    const dialog = this.#dialog;
    this.#dialog = null;
    dialog?.close();
  }
}
