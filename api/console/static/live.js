// Reads the stream of events while the page is open, and reopens it when it breaks. A page in the background reads only
// a moment of it now and then: the browser has six connections to a service for all its tabs, and a stream takes one.

import { stream, Watch } from "./api.js";

const SILENCE_MS_MAX = 8_000; // an event comes every second; a connection without any is dead
const GLANCE_MS = 30_000; // in the background: how long the title may be old
const GLANCE_TICKS = 2; // by then the slots of the wheel have come, too
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
  #watch = null;
  #ticks = 0; // of this connection
  #wake = () => {};

  constructor() {
    super();
    document.addEventListener("visibilitychange", () => !document.hidden && this.#wake());
  }

  /** Read until the page closes. */
  async run() {
    for (;;) {
      let waitMs = GLANCE_MS;
      try {
        if (!(await this.#read())) throw new Error("The stream ended.");
      } catch (error) {
        this.#say(false, words(error), error.code);
        waitMs = this.#retryMs;
        this.#retryMs = Math.min(Math.max(2 * waitMs, RETRY_MS_MIN), RETRY_MS_MAX);
      }
      await new Promise((wake) => {
        const timer = setTimeout(wake, waitMs);
        this.#wake = () => {
          clearTimeout(timer);
          wake();
        };
      });
    }
  }

  /** Reopen the stream now. */
  restart() {
    this.#retryMs = 0;
    this.#watch?.end();
    this.#wake();
  }

  /** Read one connection to its end; true if the page is in the background and has seen what there is. */
  async #read() {
    const watch = (this.#watch = new Watch(SILENCE_MS_MAX));
    this.#ticks = 0;
    try {
      const reader = await stream("/v1/live", watch);
      let text = "";
      for (;;) {
        if (document.hidden && this.#ticks >= GLANCE_TICKS) return true;
        watch.heard();
        const { value, done } = await reader.read();
        if (done) return false;
        const blocks = (text + value).split("\n\n");
        text = blocks.pop();
        for (const block of blocks) this.#take(block);
      }
    } finally {
      watch.end();
    }
  }

  #take(block) {
    const lines = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s, 2)));
    if (!lines.event) return;
    const detail = JSON.parse(lines.data);
    if (lines.event === "end") throw Object.assign(new Error(detail.detail), { code: detail.code });
    this.#retryMs = RETRY_MS_MIN;
    if (lines.event === "tick") {
      this.#ticks += 1;
      this.#say(true, detail.status);
    }
    this.dispatchEvent(new CustomEvent(lines.event, { detail }));
  }

  #say(live, detail, code) {
    this.dispatchEvent(new CustomEvent("state", { detail: { live, detail, code } }));
  }
}
