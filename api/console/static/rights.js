// What the token in use may do, as the service says it: a button that it may not use is not offered.

import { call } from "./api.js";

let rights = { scopes: ["admin"], topics: ["*"] }; // until the service has answered; it refuses what is not allowed

/** Fires `change` when the rights are known or have changed. */
export const changes = new EventTarget();

/** Ask the service; keeps what was known if it cannot be reached. */
export async function learn() {
  try {
    rights = await call("GET", "/v1/token");
  } catch {
    return;
  }
  changes.dispatchEvent(new Event("change"));
}

/** Whether the token has a scope: send, receive or admin. */
export const may = (scope) => rights.scopes.includes("admin") || rights.scopes.includes(scope);

/** Whether the token may see the rows of every topic: a list that is empty to it is empty. */
export const seesAll = () => rights.scopes.includes("admin") || rights.topics.includes("*");

/** Elements for those who have a scope; nothing for others. */
export const offer = (scope, ...elements) => (may(scope) ? elements : []);
