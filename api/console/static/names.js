// Names of topics that fields suggest, loaded only when such a field is used.

import { call } from "./api.js";
import { el } from "./dom.js";

const NAMES_MAX = 500;
const GOOD_MS = 10_000;

/** Fill a datalist whenever a field that uses it gets the focus. */
export function offerTopics(datalist) {
  let asked = -Infinity;
  document.addEventListener("focusin", async ({ target }) => {
    if (target.getAttribute("list") !== datalist.id || performance.now() - asked < GOOD_MS) return;
    asked = performance.now();
    try {
      const { topics } = await call("GET", `/v1/topics?reserved=false&limit=${NAMES_MAX}`);
      datalist.replaceChildren(...topics.map((topic) => el("option", { value: topic.topic })));
    } catch {
      asked = -Infinity; // suggestions are optional; sending the form reports the error
    }
  });
}
