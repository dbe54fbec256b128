// The history of one message from the service's log: a timeline to the millisecond, and its state in each group.

import { call, path } from "./api.js";
import { el, replace } from "./dom.js";
import { count, duration, exact, time } from "./format.js";
import { problem, table } from "./table.js";

// How each event is coloured: an end as it was wanted, a failure or a loss, or a step on the way.
const EVENTS = {
  good: ["delivered", "committed", "acknowledged"],
  bad: ["given_back", "expired", "ttl_over", "dead_lettered", "given_up", "dropped"],
  over: ["recalled", "rolled_back", "forgotten"],
  wait: ["sent", "begun", "rescheduled", "moved", "due", "parked", "handed_out", "extended", "came_back", "redriven"],
};
const STANDINGS = {
  good: ["acknowledged", "committed_past"],
  bad: ["expired", "dead_letter", "given_up", "dropped"],
  over: ["not_received", "passed_over", "not_committed", "unknown"],
  wait: ["parked", "in_flight", "waiting", "ready"],
};

const words = (name) => name.replaceAll("_", " ");
const kindIn = (kinds, name) => Object.keys(kinds).find((kind) => kinds[kind].includes(name)) ?? "wait";

/** 22:14:05.123, with the date if it is another day than now. */
const precise = (ms) => `${time(ms)}.${String(ms % 1000).padStart(3, "0")}`;

/** The time since the event before: +250 ms, +3 min 20 s. */
const since = (ms) => (ms < 0 ? `${duration(-ms)} earlier` : `+${ms < 10_000 ? `${count(ms)} ms` : duration(ms)}`);

function details(event) {
  const found = [
    event.group && `group ${event.group}`, event.attempt !== undefined && `attempt ${event.attempt}`,
    event.due_ms !== undefined && `due ${precise(event.due_ms)}`,
    event.lateness_ms !== undefined && `${count(event.lateness_ms)} ms late`, event.reason,
  ];
  return found.filter(Boolean).join(", ");
}

function timeline(events) {
  return el("ol", { class: "timeline", "aria-label": "What happened" }, events.map((event, index) =>
    el("li", { "data-kind": kindIn(EVENTS, event.what) },
      el("span", { class: "mono", title: exact(event.at_ms) }, precise(event.at_ms)),
      index ? el("span", { class: "quiet mono" }, since(event.at_ms - events[index - 1].at_ms)) : null,
      el("strong", {}, words(event.what)),
      el("span", { class: "quiet" }, details(event)))));
}

function drawn(found) {
  return el("div", { class: "stack" },
    found.events.length ? timeline(found.events) : el("p", { class: "empty" }, "Its history is no longer in the log."),
    found.groups.length ? table("Groups", [
      { head: "Group", kind: "mono name", cell: (one) => one.group },
      { head: "Status", cell: (one) => el("span", { class: "pill", "data-kind": kindIn(STANDINGS, one.standing) }, words(one.standing)) },
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
      replace(place, drawn(await call("GET", path`/v1/messages/${id}/history`)));
    } catch (error) {
      replace(place, problem(error));
    }
  };
  return el("details", { on: { toggle: load } }, el("summary", {}, "History"), place);
}
