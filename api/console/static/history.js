// The history of one message from the service's log: what happened when, and its state in each group.

import { call, path } from "./api.js";
import { el, replace } from "./dom.js";
import { count, duration, exact, time } from "./format.js";
import { problem, table } from "./table.js";

const words = (name) => name.replaceAll("_", " ");

function details(event) {
  const found = [
    event.group && `group ${event.group}`, event.attempt !== undefined && `attempt ${event.attempt}`,
    event.due_ms !== undefined && `due ${time(event.due_ms)}`,
    event.lateness_ms !== undefined && `${duration(event.lateness_ms)} late`, event.reason,
  ];
  return found.filter(Boolean).join(", ");
}

function told(found) {
  return el("div", { class: "stack" },
    table("What happened", [
      { head: "At", kind: "mono", cell: (one) => el("span", { title: exact(one.at_ms) }, time(one.at_ms)) },
      { head: "What", kind: "line", cell: (one) => words(one.what) },
      { head: "", kind: "quiet long", cell: details },
    ], found.events, "Its history is no longer in the log."),
    found.groups.length ? table("Groups", [
      { head: "Group", kind: "mono name", cell: (one) => one.group },
      { head: "Status", cell: (one) => words(one.standing) },
      { head: "Attempts", kind: "number", cell: (one) => count(one.attempts) },
    ], found.groups, "") : null,
    found.complete ? null : el("p", { class: "quiet small" }, "The log was not read to its end; there may be more."),
    found.problem ? problem(new Error(found.problem)) : null);
}

/** A section that loads the history each time it is unfolded. */
export function history(id) {
  const place = el("div", {}, el("p", { class: "quiet" }, "Loading"));
  const load = async ({ target }) => {
    if (!target.open) return;
    try {
      replace(place, told(await call("GET", path`/v1/messages/${id}/history`)));
    } catch (error) {
      replace(place, problem(error));
    }
  };
  return el("details", { on: { toggle: load } }, el("summary", {}, "History"), place);
}
