// Polls a list: often while it is shown, seldom otherwise, less often if answers take long, and seldom if the service
// refuses it.

import { Watch } from "./api.js";

const SHOWN_MS = 3_000;
const ALWAYS_MS = 15_000;
const REFUSED_MS = 30_000; // a new token triggers a request at once
const SHARE = 20; // polling takes at most 1/SHARE of the time
const SILENCE_MS_MAX = 60_000; // for one answer; a connection that broke without a sign would hold up all others

export class Poll {
  #timer = 0;
  #shown = false;
  #begun = false;
  #running = null;

  /**
   * `ask(watch)` loads the list, with calls that are given up by a watch; `fail` gets what it throws. With `always` it
   * goes on while the list is not shown.
   */
  constructor(ask, fail, { always = false } = {}) {
    this.ask = ask;
    this.fail = fail;
    this.always = always;
    document.addEventListener("visibilitychange", () => this.#on && !document.hidden && this.now());
  }

  get #on() {
    return this.#shown || (this.always && this.#begun);
  }

  /** Poll seldom, for others than a reader of the list. */
  begin() {
    this.#begun = true;
    return this.now();
  }

  /** The list is shown: poll often. */
  start() {
    this.#shown = true;
    return this.now();
  }

  /** The list is not shown any more. */
  stop() {
    this.#shown = false;
    this.#plan(ALWAYS_MS);
  }

  /** Ask again, for what is true now: an answer that is under way may be older than what has just been changed. */
  async renew() {
    if (this.#running !== null) await this.#running;
    return this.now();
  }

  /** Ask at once, or wait for the answer that is under way. */
  now() {
    this.#running ??= this.#ask().finally(() => (this.#running = null));
    return this.#running;
  }

  async #ask() {
    clearTimeout(this.#timer);
    const began = performance.now();
    let leastMs = 0;
    let share = SHARE;
    try {
      await this.ask(new Watch(SILENCE_MS_MAX));
    } catch (error) {
      if (error.status >= 400 && error.status < 500) leastMs = REFUSED_MS;
      if (!error.status) share = 0; // nobody has worked on it
      this.fail(error);
    }
    const everyMs = this.#shown ? SHOWN_MS : ALWAYS_MS;
    this.#plan(Math.max(everyMs, leastMs, share * (performance.now() - began)));
  }

  #plan(waitMs) {
    clearTimeout(this.#timer);
    if (this.#on && !document.hidden) this.#timer = setTimeout(() => this.now(), waitMs);
  }
}
