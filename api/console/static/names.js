// Names of topics: what the service's own begin with, and what fields suggest, loaded only when such a field is used.

import { call } from "./api.js";
import { el } from "./dom.js";

/** The prefix of dead-letter topics. */
export const DEAD = "%DLQ%";

const NAMES_MAX = 500;
const GOOD_MS = 10_000;

/** Fill a datalist whenever a field that uses it gets the focus. */
export function offerTopics(datalist) {
  let asked = -Infinity;
  document.addEventListener("focusin", async ({ target }) => {
    if (target.getAttribute("list") !== datalist.id || performance.now() - asked < GOOD_MS) return;
    asked = performance.now();
    try {
      const { topics } = await call("GET", `/v1/topics?limit=${NAMES_MAX}`);
      const names = topics.filter((topic) => !topic.system && !topic.topic.startsWith(DEAD));
      datalist.replaceChildren(...names.map((topic) => el("option", { value: topic.topic })));
    } catch {
      asked = -Infinity; // suggestions are optional; sending the form reports the error
    }
  });
}
