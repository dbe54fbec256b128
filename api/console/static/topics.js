// Topics: scheduled messages, and delivered ones that are kept; pause, resume and delete.

import * as address from "./address.js";
import { call, path } from "./api.js";
import { button, el, form } from "./dom.js";
import { count, counted } from "./format.js";
import { attempt, confirm, open, tell } from "./notices.js";
import { opener, reopen } from "./panels.js";
import { may } from "./rights.js";
import { Section } from "./section.js";
import { facts, table } from "./table.js";

const one = (topic) => path`/v1/topics/${topic}`;

/** Show one topic; returns the dialog. */
export async function showTopic(name, feed) {
  const topic = await call("GET", one(name));
  const changed = () => Promise.all([feed.renew(), reopen("topic", name)]);
  return open(`Topic ${name}`, el("div", { class: "stack" },
    may("admin") && !topic.system ? el("div", { class: "row" }, pauseButton(topic, changed),
      button("Purge…", () => purge(name, changed)), button("Delete…", () => remove(name, feed), { class: "danger" })) : null,
    facts([
      ["Scheduled", el("a", { class: "link", href: address.to("messages", { topic: name }) }, count(topic.pending))],
      ["Delivered, kept", count(topic.visible)], ["Consumers", topic.paused ? "paused" : "receive"],
      ["Order", topic.ordered ? "by sharding key" : "none"],
      ...(topic.to_kafka === null ? [] : [["Kafka", topic.to_kafka ? "its messages go there" : "its messages stay here"]]),
    ]),
    el("h3", {}, "Queues"),
    table("Queues", [
      { head: "Queue", kind: "number", cell: (queue) => count(queue.queue) },
      { head: "Oldest offset", kind: "number", cell: (queue) => count(queue.min_offset) },
      { head: "Next offset", kind: "number", cell: (queue) => count(queue.max_offset) },
    ], topic.queues, "None yet: nothing has been delivered.")), { side: true });
}

function pauseButton({ topic, paused }, changed) {
  const verb = paused ? "resume" : "pause";
  return button(paused ? "Resume" : "Pause", () => attempt(async () => {
    await call("POST", `${one(topic)}/${verb}`);
    tell(paused ? `Topic ${topic}: its consumers receive again.` : `Topic ${topic}: its consumers receive nothing until it is resumed; messages still fire.`);
    await changed();
  }), { "aria-label": `${paused ? "Resume" : "Pause"} ${topic}`, "data-key": `pause ${topic}` });
}

/** Ask which messages to take away, count them, and purge. */
function purge(name, changed) {
  const outcome = el("p", { role: "status" }, "You see how many messages match before anything is purged.");
  const dialog = open(`Purge ${name}`, form({ class: "stack" }, ({ scheduled, delivered }) => attempt(async () => {
    const asked = { scheduled: scheduled === "on", delivered: delivered === "on" };
    const found = await call("POST", `${one(name)}/purge`, { ...asked, dry_run: true });
    const words = `${counted(found.scheduled, "scheduled message")} and ${counted(found.delivered, "delivered message")}`;
    outcome.textContent = `${words} would be purged.`;
    if (!(await confirm(`Purge ${name}?`, `This purges ${words}; the topic, its groups and messages sent from now on stay. This cannot be undone.`, "Purge it"))) return;
    const done = await call("POST", `${one(name)}/purge`, asked);
    dialog.close();
    tell(`Topic ${name}: ${counted(done.scheduled, "scheduled message")} and ${counted(done.delivered, "delivered message")} are gone.`);
    await changed();
  }),
    box("Scheduled messages", "scheduled"), box("Delivered messages", "delivered"), outcome,
    el("div", { class: "row" }, el("button", { class: "danger" }, "Count them"))));
}

const box = (label, name) => el("label", { class: "row" }, el("input", { type: "checkbox", name }), label);

/** Say what a deletion takes with it, and delete. */
const remove = (name, feed) => attempt(async () => {
  const goes = await call("DELETE", `${one(name)}?dry_run=true`);
  const counts = [
    [goes.pending, "scheduled message"], [goes.visible, "delivered message"], [goes.groups.length, "group"],
    [goes.schedules.length, "schedule"], [goes.subscriptions.length, "subscription"],
  ].filter(([number]) => number).map(([number, noun]) => counted(number, noun));
  const words = `${counts.length ? `This also deletes ${counts.join(", ")}. ` : ""}This cannot be undone.`;
  if (!(await confirm(`Delete the topic ${name}?`, words, "Delete it"))) return;
  await call("DELETE", one(name));
  tell(`Topic ${name}: deleted.`);
  document.querySelector("dialog[open]")?.close();
  await feed.renew();
});

/** `feed` is the list of topics. */
export const topics = (feed) => new Section({
  name: "topics", title: "Topics", feed,
  words: (topic) => topic.topic,
  noun: "topic", how: "Sending to a topic creates it: send a test message.",
  teaches: ["timerwheel send orders 'close order 17' --delay 30m", "timerwheel topics list", "timerwheel topics show orders"],
  columns: [
    { head: "Topic", kind: "mono name", cell: (topic) => opener("topic", topic.topic) },
    { head: "Scheduled", kind: "number", cell: (topic) => topic.pending ? el("a", {
      class: "link", "data-key": `waiting ${topic.topic}`, href: address.to("messages", { topic: topic.topic }), "aria-label": `${count(topic.pending)} scheduled for ${topic.topic}`,
    }, count(topic.pending)) : "0" },
    { head: "Delivered, kept", kind: "number", cell: (topic) => count(topic.visible) },
    { head: "Queues", kind: "number", cell: (topic) => count(topic.queues.length) },
    { head: "", cell: (topic) => [topic.paused && "paused", topic.ordered && "ordered by key", topic.to_kafka && "goes to Kafka"].filter(Boolean).join(", ") },
  ],
});
