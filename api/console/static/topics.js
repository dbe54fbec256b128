// Topics: scheduled messages, and delivered ones that are kept.

import { el } from "./dom.js";
import { count } from "./format.js";
import { Section } from "./section.js";

/** `list` is called to list the scheduled messages of a topic. */
export const topics = (list) => new Section({
  name: "topics", title: "Topics", url: "/v1/topics", key: "topics",
  words: (topic) => topic.topic,
  noun: "topic", how: "Sending to a topic creates it: send a test message.",
  columns: [
    { head: "Topic", kind: "mono name", cell: (topic) => topic.system ? topic.topic : el("button", {
      type: "button", class: "link", "data-key": topic.topic, on: { click: () => list(topic.topic) },
    }, topic.topic) },
    { head: "Waiting", kind: "number", cell: (topic) => count(topic.pending) },
    { head: "Delivered, kept", kind: "number", cell: (topic) => topic.system ? "–" : count(topic.visible) },
    { head: "Queues", kind: "number", cell: (topic) => topic.system ? "–" : count(topic.queues.length) },
    { head: "", cell: (topic) => [topic.paused && "paused", topic.ordered && "ordered by key", topic.system && "of the service"].filter(Boolean).join(", ") },
  ],
});
