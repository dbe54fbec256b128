// Consumer groups: how far behind they are, and what they hold.

import { el } from "./dom.js";
import { count, duration } from "./format.js";
import { Section } from "./section.js";

/** `letters` is called to show the dead letters of a group. */
export const groups = (letters) => new Section({
  name: "groups", title: "Groups", url: "/v1/groups", key: "groups",
  words: (group) => `${group.topic} ${group.group}`,
  noun: "consumer group", how: "“timerwheel groups put” creates one, and so can a worker.",
  columns: [
    { head: "Topic", kind: "mono name", cell: (group) => group.topic },
    { head: "Group", kind: "mono name", cell: (group) => group.config.kind === "offsets" ? `${group.group} (offsets)` : group.group },
    { head: "Lag", kind: "number", cell: (group) => count(group.lag) },
    { head: "In flight", kind: "number", cell: (group) => count(group.in_flight) },
    { head: "To be retried", kind: "number", cell: (group) => count(group.waiting + group.ready) },
    { head: "Parked", kind: "number", cell: (group) => count(group.parked) },
    { head: "Oldest", kind: "number", cell: (group) => group.oldest_age_ms === null ? "" : duration(group.oldest_age_ms) },
    { head: "Dead letters", kind: "number", cell: (group) => group.dead_letters ? el("button", {
      type: "button", class: "link bad", "data-key": `${group.topic} ${group.group}`, on: { click: () => letters(`${group.topic}/${group.group}`) },
    }, count(group.dead_letters)) : "0" },
  ],
});
