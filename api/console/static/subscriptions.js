// Push subscriptions: targets and their state; pause, resume, test delivery.

import { call, path } from "./api.js";
import { button, el } from "./dom.js";
import { count, duration, time } from "./format.js";
import { attempt, open, tell } from "./notices.js";
import { opener } from "./panels.js";
import { Section } from "./section.js";
import { facts, reason } from "./table.js";

async function test({ id }) {
  const outcome = await call("POST", path`/v1/subscriptions/${id}/test`);
  tell(`Test delivery of ${id}: ${outcome.kind}, ${outcome.reason}, in ${duration(outcome.latency_ms)}.`);
}

/** Facts about a failing endpoint, null for a healthy one. */
const failing = (one) => one.status !== "failing" ? null
  : `since ${time(one.failing_since_ms)}, ${count(one.failures_in_row)} in a row: ${one.last_error}`
    + (one.next_attempt_ms ? `; next attempt ${time(one.next_attempt_ms)}` : "");

/** Show one subscription; returns the dialog. */
export async function showSubscription(id) {
  const [subscription, stats] = await Promise.all([
    call("GET", path`/v1/subscriptions/${id}`), call("GET", path`/v1/subscriptions/${id}/stats`),
  ]);
  return open(`Subscription ${subscription.id}`, facts([
    ["URL", subscription.url], ["Topic", subscription.topic], ["Group", subscription.group], ["Tags", subscription.tags],
    ["Status", subscription.disabled ? `disabled: ${subscription.disabled}` : subscription.status], ["Failing", failing(subscription)],
    ["Delivered", count(stats.delivered)], ["Failed", count(stats.failed)], ["In flight", count(stats.in_flight)],
    ["Failures in a row", count(stats.failures_in_row)], ["Last status", stats.last_status && String(stats.last_status)],
    ["Last error", stats.last_error], ["Last attempt", stats.last_attempt_ms && time(stats.last_attempt_ms)],
    ["Response time, p50", stats.latency_p50_ms && duration(stats.latency_p50_ms)],
    ["Response time, p99", stats.latency_p99_ms && duration(stats.latency_p99_ms)],
  ]), { side: true });
}

/** `feed` is the list of subscriptions. */
export function subscriptions(feed) {
  const change = (subscription, verb) => attempt(async () => {
    await call("POST", path`/v1/subscriptions/${subscription.id}/${verb}`);
    tell(`Subscription ${subscription.id}: ${verb === "pause" ? "paused" : "resumed"}.`);
    await feed.renew();
  });
  return new Section({
    name: "subscriptions", title: "Subscriptions", feed,
    words: (one) => `${one.id} ${one.topic} ${one.group} ${one.url}`,
    noun: "subscription", how: "“timerwheel subscriptions add” pushes the messages of a topic to a URL.",
    columns: [
      { head: "Subscription", kind: "mono name", cell: (one) => opener("subscription", one.id) },
      { head: "Topic", kind: "mono name", cell: (one) => one.topic },
      { head: "URL", kind: "long", cell: (one) => one.url },
      { head: "Status", kind: "long", cell: (one) => [
        el("span", { class: "pill", "data-kind": { active: "good", paused: "wait" }[one.status] ?? "bad" }, one.status), reason(one.disabled ?? failing(one)),
      ] },
      { head: "", kind: "acts", cell: (one) => el("div", { class: "row" },
        one.status === "active" || one.status === "failing"
          ? button("Pause", () => change(one, "pause"), { "data-key": `pause ${one.id}`, "aria-label": `Pause ${one.id}` })
          : button("Resume", () => change(one, "resume"), { "data-key": `pause ${one.id}`, "aria-label": `Resume ${one.id}` }),
        button("Test", () => attempt(() => test(one)), { "data-key": `test ${one.id}`, "aria-label": `Test ${one.id}` })) },
    ],
  });
}
