// Polls a list while it is shown: less often if answers take long, and seldom if the service
// refuses it.

const EVERY_MS = 3_000;
const REFUSED_MS = 30_000; // a new token triggers a request at once
const SHARE = 20; // polling takes at most 1/SHARE of the time

export class Poll {
  #timer = 0;
  #on = false;

  /** `ask` loads and shows the list; `fail` gets what it throws. */
  constructor(ask, fail) {
    this.ask = ask;
    this.fail = fail;
    document.addEventListener("visibilitychange", () => this.#on && !document.hidden && this.now());
  }

  start() {
    this.#on = true;
    return this.now();
  }

  stop() {
    this.#on = false;
    clearTimeout(this.#timer);
  }

  /** Ask at once. */
  async now() {
    clearTimeout(this.#timer);
    const began = performance.now();
    let everyMs = EVERY_MS;
    try {
      await this.ask();
    } catch (error) {
      if (error.status >= 400 && error.status < 500) everyMs = REFUSED_MS;
      this.fail(error);
    }
    const waitMs = Math.max(everyMs, SHARE * (performance.now() - began));
    clearTimeout(this.#timer);
    if (this.#on && !document.hidden) this.#timer = setTimeout(() => this.now(), waitMs);
  }
}
