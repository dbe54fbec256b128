// A list of the service that several parts of the page show: loaded once for all of them, often while a reader
// looks at it, and seldom otherwise.

import { call } from "./api.js";
import { Poll } from "./poll.js";

/** Fires `change` after each load; `rows` is null until then, and after a failure, when `error` says why. */
export class Feed extends EventTarget {
  rows = null;
  error = null;

  /** `key` names the list in the answer; with `always` it is loaded while nobody looks at it, too. */
  constructor(url, key, { always = false } = {}) {
    super();
    this.url = url;
    this.key = key;
    this.poll = new Poll(() => this.#load(), (error) => this.#take(null, error), { always });
    if (always) this.poll.begin();
  }

  /** Load again, now. */
  renew() {
    return this.poll.now();
  }

  async #load() {
    this.#take((await call("GET", this.url))[this.key], null);
  }

  /** After an error, forget the rows, too: another token may have loaded them. */
  #take(rows, error) {
    this.rows = rows;
    this.error = error;
    this.dispatchEvent(new Event("change"));
  }
}
