// Topics: scheduled messages, and delivered ones that are kept.

import * as address from "./address.js";
import { el } from "./dom.js";
import { count } from "./format.js";
import { Section } from "./section.js";

/** `feed` is the list of topics. */
export const topics = (feed) => new Section({
  name: "topics", title: "Topics", feed, keeps: (topic) => !topic.system, // not the service's own
  words: (topic) => topic.topic,
  noun: "topic", how: "Sending to a topic creates it: send a test message.",
  columns: [
    { head: "Topic", kind: "mono name", cell: (topic) => el("a", {
      class: "link", "data-key": topic.topic, href: address.to("messages", { topic: topic.topic }),
    }, topic.topic) },
    { head: "Waiting", kind: "number", cell: (topic) => count(topic.pending) },
    { head: "Delivered, kept", kind: "number", cell: (topic) => count(topic.visible) },
    { head: "Queues", kind: "number", cell: (topic) => count(topic.queues.length) },
    { head: "", cell: (topic) => [topic.paused && "paused", topic.ordered && "ordered by key"].filter(Boolean).join(", ") },
  ],
});
