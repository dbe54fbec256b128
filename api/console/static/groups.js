// Consumer groups: how far behind they are, and what they hold.

import * as address from "./address.js";
import { IF_NEW, call, path } from "./api.js";
import { button, el, field, form } from "./dom.js";
import { count, duration } from "./format.js";
import { attempt, confirm, open, tell } from "./notices.js";
import { opener, reopen } from "./panels.js";
import { may, offer } from "./rights.js";
import { Section } from "./section.js";
import { facts } from "./table.js";

const dead = (group) => group.dead_letters ? el("a", {
  class: "link bad", "data-key": `dead ${group.topic} ${group.group}`, href: address.to("letters", { group: `${group.topic}/${group.group}` }),
}, count(group.dead_letters)) : "0";

const place = (topic, group) => path`/v1/topics/${topic}/groups/${group}`;

/** Ask where a group continues, and move it there. */
function rewind(topic, group, changed) {
  const move = async ({ to, at }) => {
    const where = to === "time" ? { time_ms: new Date(at).getTime() } : { to };
    if (to === "time" && !at) throw new Error("Give the time to continue from.");
    await call("POST", `${place(topic, group)}/rewind`, where);
    dialog.close();
    tell(`Group ${topic}/${group}: it continues from there.`);
    await changed();
  };
  const dialog = open(`Rewind ${topic}/${group}`, form({ class: "stack" }, (given) => attempt(() => move(given)),
    el("p", {}, "The group continues from another place: messages after it are received again, messages before it are passed over."),
    el("label", { class: "field" }, el("span", {}, "Continue from"), el("select", { name: "to" },
      el("option", { value: "time" }, "the first message delivered at a time"), el("option", { value: "head" }, "the oldest message that is kept"),
      el("option", { value: "tail" }, "new messages only"))),
    field("Time", { name: "at", type: "datetime-local", step: 1, hint: "in this browser's zone" }),
    el("div", { class: "row" }, el("button", { class: "danger" }, "Rewind"))));
}

function remove(topic, group, changed) {
  return attempt(async () => {
    if (!(await confirm(`Delete the group ${topic}/${group}?`, "Its position is forgotten. Its dead letters stay.", "Delete it"))) return;
    await call("DELETE", place(topic, group));
    tell(`Group ${topic}/${group}: deleted.`);
    document.querySelector("dialog[open]")?.close();
    await changed();
  });
}

/** Ask for the name of a group and create it. */
function create(changed) {
  const dialog = open("New group", form({ class: "stack" }, ({ topic, group, tags, start, max_attempts: most }) => attempt(async () => {
    await call("PUT", place(topic, group), { start, ...(tags ? { tags } : {}), ...(most ? { max_attempts: Number(most) } : {}) }, IF_NEW);
    dialog.close();
    tell(`Group ${topic}/${group}: created.`);
    await changed();
  }),
    field("Topic", { name: "topic", required: true, list: "topic-names" }), field("Group", { name: "group", required: true }),
    field("Tags", { name: "tags", placeholder: "paid || shipped" }),
    el("label", { class: "field" }, el("span", {}, "Begins with"), el("select", { name: "start" },
      el("option", { value: "head" }, "the oldest message that is kept"), el("option", { value: "tail" }, "new messages only"))),
    field("Attempts", { name: "max_attempts", type: "number", min: 1, value: 16 }),
    el("div", { class: "row" }, el("button", { class: "primary" }, "Create"))));
}

/** The delay from one attempt to the next. */
const backoff = ({ type, initial_ms: firstMs, factor, max_ms: mostMs }) => type === "exponential"
  ? `${duration(firstMs)}, then ${factor} times as long each time, up to ${duration(mostMs)}` : "the delay levels from the third on: 10 s, 30 s, 1 min and so on";

/** The settings of a group in words; one of kind `offsets` has few of them. */
function settings(config) {
  const begins = { head: "the oldest message that was kept", tail: "messages from then on" }[config.start];
  if (config.kind === "offsets") return facts([["Began with", begins], ["Attempts", count(config.max_attempts)]]);
  return facts([
    ["Began with", begins], ["Tags", config.tags === "*" ? "any" : config.tags], ["Attempts", count(config.max_attempts)],
    ["Lease", duration(config.invisible_ms)], ["Next attempt after", backoff(config.backoff)],
    ["Age", config.max_age_ms ? `no other attempt ${duration(config.max_age_ms)} after delivery` : null],
    ["After its own TTL", { drop: "dropped", dead_letter: "a dead letter" }[config.expired]],
  ]);
}

/** Show one group, named as topic/group; returns the dialog. */
export async function showGroup(name, feed) {
  const [topic, group] = name.split("/", 2);
  const found = await call("GET", place(topic, group));
  const changed = () => Promise.all([feed.renew(), reopen("group", name)]);
  return open(`Group ${name}`, el("div", { class: "stack" },
    may("admin") ? el("div", { class: "row" },
      button("Rewind…", () => rewind(topic, group, changed)), button("Delete", () => remove(topic, group, () => feed.renew()), { class: "danger" })) : null,
    facts([
      ["Topic", el("a", { class: "link", href: address.to("messages", { topic }) }, topic)], ["Group", group], ["Kind", found.config.kind],
      ["Lag", count(found.lag)], ["In flight", count(found.in_flight)], ["Waiting for a retry", count(found.waiting)],
      ["Ready for a retry", count(found.ready)], ["Parked", count(found.parked)],
      ["Oldest", found.oldest_age_ms === null ? null : duration(found.oldest_age_ms)], ["Dead letters", dead(found)],
    ]),
    el("h3", {}, "Settings"), settings(found.config)), { side: true });
}

/** `feed` is the list of groups. */
export const groups = (feed) => new Section({
  // Not those of the service, which call the URLs of tasks.
  name: "groups", title: "Groups", feed, keeps: ({ topic, group }) => !(topic.startsWith("%TASK%") && group === "tasks"),
  words: (group) => `${group.topic} ${group.group}`,
  noun: "consumer group", how: "A group receives the messages of a topic; a worker can create its own.",
  teaches: ["timerwheel send orders 'close order 17'", "timerwheel groups receive orders workers", "timerwheel groups show orders workers"],
  acts: () => offer("admin", button("New group…", () => create(() => feed.renew()), { class: "primary" })),
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
