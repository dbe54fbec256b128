// Consumer groups: how far behind they are, and what they hold.

import * as address from "./address.js";
import { el } from "./dom.js";
import { count, duration } from "./format.js";
import { open } from "./notices.js";
import { opener } from "./panels.js";
import { Section } from "./section.js";
import { facts } from "./table.js";
import { call, path } from "./api.js";

const dead = (group) => group.dead_letters ? el("a", {
  class: "link bad", "data-key": `dead ${group.topic} ${group.group}`, href: address.to("letters", { group: `${group.topic}/${group.group}` }),
}, count(group.dead_letters)) : "0";

/** Show one group, named as topic/group; returns the dialog. */
export async function showGroup(name) {
  const [topic, group] = name.split("/", 2);
  const found = await call("GET", path`/v1/topics/${topic}/groups/${group}`);
  return open(`Group ${name}`, el("div", { class: "stack" },
    facts([
      ["Topic", el("a", { class: "link", href: address.to("messages", { topic }) }, topic)], ["Group", group], ["Kind", found.config.kind],
      ["Lag", count(found.lag)], ["In flight", count(found.in_flight)], ["Waiting for a retry", count(found.waiting)],
      ["Ready for a retry", count(found.ready)], ["Parked", count(found.parked)],
      ["Oldest", found.oldest_age_ms === null ? null : duration(found.oldest_age_ms)], ["Dead letters", dead(found)],
    ]),
    el("h3", {}, "Settings"),
    facts(Object.entries(found.config).map(([setting, value]) => [setting.replaceAll("_", " "), value === null ? null : String(value)]))), { side: true });
}

/** `feed` is the list of groups. */
export const groups = (feed) => new Section({
  name: "groups", title: "Groups", feed,
  words: (group) => `${group.topic} ${group.group}`,
  noun: "consumer group", how: "“timerwheel groups put” creates one, and so can a worker.",
  columns: [
    { head: "Topic", kind: "mono name", cell: (group) => group.topic },
    { head: "Group", kind: "mono name", cell: (group) => opener("group", `${group.topic}/${group.group}`,
      group.config.kind === "offsets" ? `${group.group} (offsets)` : group.group) },
    { head: "Lag", kind: "number", cell: (group) => count(group.lag) },
    { head: "In flight", kind: "number", cell: (group) => count(group.in_flight) },
    { head: "To be retried", kind: "number", cell: (group) => count(group.waiting + group.ready) },
    { head: "Parked", kind: "number", cell: (group) => count(group.parked) },
    { head: "Oldest", kind: "number", cell: (group) => group.oldest_age_ms === null ? "" : duration(group.oldest_age_ms) },
    { head: "Dead letters", kind: "number", cell: dead },
  ],
});
