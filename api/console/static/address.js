// The address of what is shown: the list, its filter, and the open panel, as #messages?topic=orders&open=message:ID.
// So each of them can be linked to, and the browser's Back closes a panel.

import { query } from "./api.js";

const OPEN = "open"; // the parameter that names the panel, as kind:id

/** {list, given, open}: the name of the list, its parameters, and the panel or null. */
export function read() {
  const [list, rest = ""] = location.hash.slice(1).split(/\?(.*)/s);
  const { [OPEN]: open = null, ...given } = Object.fromEntries(new URLSearchParams(rest));
  return { list, given, open };
}

/** The link to a list with a filter, and to a panel over it. */
export const to = (list, given = {}, open = null) => `#${list}${query({ ...given, [OPEN]: open })}`;

/** The link to a panel over the list that is shown. */
export function toPanel(kind, id) {
  const { list, given } = read();
  return to(list, given, `${kind}:${id}`);
}

/** Go to a list or a panel: a step that Back takes back. */
export function go(hash) {
  location.hash = hash;
}

/** Show another filter without a step for Back. */
export function adjust(given) {
  const { list, open } = read();
  history.replaceState(history.state, "", to(list, given, open));
}

/** Leave the panel: back to where it was opened, or only without it if the page was opened with it. */
export function leavePanel() {
  if (history.state?.inside) return history.back();
  const { list, given } = read();
  history.replaceState(history.state, "", to(list, given));
  return follow();
}

let followers = [];

const follow = () => followers.forEach((act) => act(read()));

/** Call `act` with the address now, and whenever it changes. */
export function follows(act) {
  followers.push(act);
  act(read());
}

if (history.state === null) history.replaceState({ inside: false }, "");
addEventListener("hashchange", () => {
  if (history.state === null) history.replaceState({ inside: true }, "");
  follow();
});
