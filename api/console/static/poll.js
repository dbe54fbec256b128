// A list that is asked for again and again while it is seen; the longer an answer takes, the less often.

const EVERY_MS = 3_000;
const SHARE = 20; // asking takes at most one part in so many of the time

export class Poll {
  #timer = 0;
  #on = false;

  /** `ask` gets what is shown and shows it; what it throws goes to `fail`. */
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
    try {
      await this.ask();
    } catch (error) {
      this.fail(error);
    }
    const waitMs = Math.max(EVERY_MS, SHARE * (performance.now() - began));
    clearTimeout(this.#timer);
    if (this.#on && !document.hidden) this.#timer = setTimeout(() => this.now(), waitMs);
  }
}
