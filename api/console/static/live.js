// Reads the stream of events while the page is open, and reopens it when it breaks.

import { stream } from "./api.js";

const SILENCE_MS_MAX = 8_000; // an event comes every second; a connection without any is dead
const RETRY_MS_MIN = 500;
const RETRY_MS_MAX = 10_000;

/** Why a stream ended, in words. */
function words(error) {
  if (error.name === "AbortError") return "No event has arrived for a while.";
  return error instanceof TypeError ? "The connection broke." : error.message;
}

/** Fires `tick` and `wheel` with the event's data as `detail`, and `state` with {live, detail, code}. */
export class Live extends EventTarget {
  #retryMs = RETRY_MS_MIN;
  #control = new AbortController();
  #wake = () => {};

  /** Read until the page closes. */
  async run() {
    for (;;) {
      const control = (this.#control = new AbortController());
      try {
        await this.#read(control);
        this.#say(false, "The stream ended.");
      } catch (error) {
        this.#say(false, words(error), error.code);
      }
      await new Promise((wake) => {
        this.#wake = wake;
        setTimeout(wake, this.#retryMs);
      });
      this.#retryMs = Math.min(Math.max(2 * this.#retryMs, RETRY_MS_MIN), RETRY_MS_MAX);
    }
  }

  /** Reopen the stream now. */
  restart() {
    this.#retryMs = 0;
    this.#control.abort();
    this.#wake();
  }

  async #read(control) {
    let watchdog = 0;
    const heard = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => control.abort(), SILENCE_MS_MAX);
    };
    try {
      // The watchdog starts with the answer, because before it the page may ask for a token.
      const reader = await stream("/v1/live", control.signal);
      let text = "";
      for (;;) {
        heard();
        const { value, done } = await reader.read();
        if (done) return;
        const blocks = (text + value).split("\n\n");
        text = blocks.pop();
        for (const block of blocks) this.#take(block);
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  #take(block) {
    const lines = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s, 2)));
    if (!lines.event) return;
    const detail = JSON.parse(lines.data);
    if (lines.event === "end") throw Object.assign(new Error(detail.detail), { code: detail.code });
    this.#retryMs = RETRY_MS_MIN;
    if (lines.event === "tick") this.#say(true, detail.status);
    this.dispatchEvent(new CustomEvent(lines.event, { detail }));
  }

  #say(live, detail, code) {
    this.dispatchEvent(new CustomEvent("state", { detail: { live, detail, code } }));
  }
}
