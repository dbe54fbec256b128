// The topics that fields offer: asked for when such a field is used, not before.

import { call } from "./api.js";
import { el } from "./dom.js";

const NAMES_MAX = 500;
const GOOD_MS = 10_000;

/** Fill a datalist whenever the focus comes to a field that uses it. */
export function offerTopics(datalist) {
  let asked = -Infinity;
  document.addEventListener("focusin", async ({ target }) => {
    if (target.getAttribute("list") !== datalist.id || performance.now() - asked < GOOD_MS) return;
    asked = performance.now();
    try {
      const { topics } = await call("GET", "/v1/topics");
      const names = topics.filter((topic) => !topic.system).slice(0, NAMES_MAX);
      datalist.replaceChildren(...names.map((topic) => el("option", { value: topic.topic })));
    } catch {
      asked = -Infinity; // the field can be filled without; what is wrong is said where it is sent
    }
  });
}
