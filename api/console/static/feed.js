// A list of the service that several parts of the page show: loaded once for all of them, often while a reader
// looks at it, and seldom otherwise.

import { call, query } from "./api.js";
import { Poll } from "./poll.js";

const PAGE = 1_000; // the most that the service answers with at once
const ROWS_MAX = 10_000; // loaded; more would make the page slow

/** Fires `change` after each load; `rows` is null until then, and after a failure, when `error` says why. */
export class Feed extends EventTarget {
  rows = null;
  error = null;
  isCut = false; // the service has more than `ROWS_MAX`

  /**
   * `key` names the list in the answer; with `always` it is loaded while nobody looks at it, too. All else that is
   * given is part of the query.
   */
  constructor(url, key, { always = false, ...given } = {}) {
    super();
    this.given = given;
    this.url = url;
    this.key = key;
    this.poll = new Poll((watch) => this.#load(watch), (error) => this.#take(null, error), { always });
    if (always) this.poll.begin();
  }

  /** Load again, now. */
  renew() {
    return this.poll.renew();
  }

  async #load(watch) {
    const rows = [];
    let cursor;
    do {
      const page = await call("GET", `${this.url}${query({ ...this.given, limit: PAGE, cursor })}`, undefined, {}, watch);
      rows.push(...page[this.key]);
      cursor = page.cursor ?? null;
    } while (cursor !== null && rows.length < ROWS_MAX);
    this.isCut = cursor !== null;
    this.#take(rows, null);
  }

  /** After an error, forget the rows, too: another token may have loaded them. */
  #take(rows, error) {
    this.rows = rows;
    this.error = error;
    this.dispatchEvent(new Event("change"));
  }
}
