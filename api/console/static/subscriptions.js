// Push subscriptions: targets, their state and their last attempts; create, change, pause, resume, test, delete.

import { call, ifSame, path, seen } from "./api.js";
import { copy } from "./clipboard.js";
import { button, el, field, form } from "./dom.js";
import { count, duration, exact, time } from "./format.js";
import { attempt, confirm, open, tell } from "./notices.js";
import { opener, reopen } from "./panels.js";
import { may, offer } from "./rights.js";
import { Section } from "./section.js";
import { facts, reason, table } from "./table.js";

const one = (id) => path`/v1/subscriptions/${id}`;

async function test({ id }, changed) {
  const outcome = await call("POST", `${one(id)}/test`);
  tell(`Test delivery of ${id}: ${outcome.kind}, ${outcome.reason}, in ${duration(outcome.latency_ms)}.${outcome.answer ? ` It answered: ${outcome.answer}` : ""}`);
  await changed?.();
}

/** A badge that shows the status of a subscription. */
const statusSign = ({ status }) => el("span", { class: "pill", "data-kind": { active: "good", paused: "wait" }[status] ?? "bad" }, status);

/** Facts about a failing endpoint, null for a healthy one. */
const failing = (one) => one.status !== "failing" ? null
  : `since ${time(one.failing_since_ms)}, ${count(one.failures_in_row)} in a row: ${one.last_error}`
    + (one.next_attempt_ms ? `; next attempt ${time(one.next_attempt_ms)}` : "");

/** Which attempt it was, how long it took, and when the next one is. */
const wordsOf = ({ attempt: number, latency_ms: tookMs, next_attempt_ms: nextMs }) =>
  [number ? `attempt ${count(number)}` : "by hand", duration(tookMs), nextMs && `next ${time(nextMs)}`].filter(Boolean).join(", ");

/** Show one subscription with its last attempts; returns the dialog. */
export async function showSubscription(id, feed) {
  const [[subscription, tag], stats, { attempts }] = await Promise.all([
    seen(one(id)), call("GET", `${one(id)}/stats`), call("GET", `${one(id)}/attempts`),
  ]);
  const changed = () => Promise.all([feed.renew(), reopen("subscription", id)]);
  return open(`Subscription ${id}`, el("div", { class: "stack" },
    acts(subscription, tag, changed, feed),
    facts([
      ["URL", subscription.url], ["Topic", subscription.topic],
      ["Group", opener("group", `${subscription.topic}/${subscription.group}`, subscription.group)], ["Tags", subscription.tags === "*" ? "any" : subscription.tags],
      ["Status", [statusSign(subscription), reason(subscription.disabled)]], ["Failing", failing(subscription)],
      ["Attempts allowed", String(subscription.max_attempts)], ["Requests at once", String(subscription.concurrency)],
      ["Time limit", duration(subscription.timeout_ms)], ["Requests a second", subscription.rate_limit ? String(subscription.rate_limit) : null],
      ["Delivered", count(stats.delivered)], ["Failed", count(stats.failed)], ["In flight", count(stats.in_flight)],
      ["Failures in a row", count(stats.failures_in_row)], ["Last error", stats.last_error],
      ["Response time", stats.latency_p50_ms && `p50 ${duration(stats.latency_p50_ms)}, p99 ${duration(stats.latency_p99_ms)}`],
    ]),
    el("h3", {}, "Last attempts"),
    table("Last attempts", [
      { head: "At", kind: "mono name", cell: (made) => el("span", { title: exact(made.at_ms) }, time(made.at_ms)) },
      { head: "Message", kind: "mono", cell: (made) => opener("message", made.message_id) },
      { head: "Outcome", kind: "long", cell: (made) => [
        el("span", { class: "pill", "data-kind": made.kind === "delivered" ? "good" : "bad" }, made.reason),
        el("p", { class: "small" }, wordsOf(made)),
        made.answer ? el("p", { class: "small quiet mono" }, made.answer) : null,
      ] },
      { head: "", kind: "acts", cell: (made) => !may("receive") ? null : button("Send again", () => attempt(async () => {
        const again = await call("POST", `${one(id)}/attempts`, { message_id: made.message_id });
        tell(`Sent again to ${id}: ${again.kind}, ${again.reason}, in ${duration(again.latency_ms)}.`);
        await changed();
      }), { "aria-label": `Send again: ${made.message_id}`, "data-key": `again ${made.at_ms} ${made.message_id}` }) },
    ], attempts, "None since the service started.")), { side: true });
}

function acts(subscription, tag, changed, feed) {
  if (!may("receive")) return null;
  const { id } = subscription;
  return el("div", { class: "row" },
    button("Test", () => attempt(() => test(subscription, changed))),
    button("Edit…", () => edit(subscription, tag, changed)),
    pauseButton(subscription, changed),
    button("Delete", () => attempt(async () => {
      if (!(await confirm(`Delete the subscription ${id}?`, "Requests in progress are cut off, and its group goes if it was created for it.", "Delete it"))) return;
      await call("DELETE", one(id));
      tell(`Subscription ${id}: deleted.`);
      document.querySelector("dialog[open]")?.close();
      await feed.renew();
    }), { class: "danger" }));
}

const runs = (subscription) => subscription.status === "active" || subscription.status === "failing";

function pauseButton(subscription, changed) {
  const verb = runs(subscription) ? "pause" : "resume";
  const { id } = subscription;
  return button(verb === "pause" ? "Pause" : "Resume", () => attempt(async () => {
    await call("POST", `${one(id)}/${verb}`);
    tell(`Subscription ${id}: ${verb === "pause" ? "paused" : "resumed"}.`);
    await changed();
  }), { "data-key": `pause ${id}`, "aria-label": `${verb === "pause" ? "Pause" : "Resume"} ${id}` });
}

/** Ask for a subscription, new or changed, and store it: unless others have changed it since it had this tag. */
function edit(subscription, tag, changed) {
  const isNew = subscription === null;
  const known = subscription ?? { concurrency: 8, max_attempts: 16, timeout_ms: 15_000 };
  const store = async ({ id, topic, url, tags, concurrency, max_attempts, timeout_s: timeoutS, rate_limit }) => {
    const spec = {
      url, concurrency: Number(concurrency), max_attempts: Number(max_attempts), timeout_ms: Math.round(Number(timeoutS) * 1000),
      ...(tags ? { tags } : isNew ? {} : { tags: "*" }), ...(rate_limit ? { rate_limit: Number(rate_limit) } : isNew ? {} : { rate_limit: null }),
    };
    if (!isNew) await call("PATCH", one(known.id), spec, ifSame(tag));
    const made = isNew ? await call("POST", "/v1/subscriptions", { ...spec, topic, ...(id ? { id } : {}) }) : null;
    dialog.close();
    if (made) showSecret(made);
    else tell(`Subscription ${known.id}: changed.`);
    await changed();
  };
  const numbers = (label, name, given = {}) => field(label, { name, type: "number", value: known[name], ...given });
  const dialog = open(isNew ? "New subscription" : `Subscription ${known.id}`, form({ class: "stack" }, (given) => attempt(() => store(given)),
    isNew ? field("Topic", { name: "topic", required: true, list: "topic-names" }) : null,
    field("URL", { name: "url", type: "url", required: true, value: known.url, placeholder: "where to post the messages" }),
    isNew ? field("Id", { name: "id", hint: "the service chooses one if it is empty" }) : null,
    field("Tags", { name: "tags", value: known.tags, placeholder: "paid || shipped" }),
    el("div", { class: "when" },
      numbers("Requests at once", "concurrency", { min: 1, max: 256 }), numbers("Attempts", "max_attempts", { min: 1 }),
      numbers("Time limit, seconds", "timeout_s", { min: 0.1, step: "any", value: known.timeout_ms / 1000 }), numbers("Requests a second", "rate_limit", { min: 0, step: "any", placeholder: "no limit" })),
    el("div", { class: "row" }, el("button", { class: "primary" }, isNew ? "Create" : "Save"))));
}

/** The secret is shown once; no other call returns it. */
function showSecret({ id, secret }) {
  open(`Subscription ${id}`, el("div", { class: "stack" },
    el("p", {}, "Its secret, with which the endpoint checks the signatures. It is shown only now:"),
    el("pre", { class: "body" }, secret),
    button("Copy", () => attempt(async () => {
      await copy(secret);
      tell("The secret is copied.");
    }))));
}

/** `feed` is the list of subscriptions. */
export function subscriptions(feed) {
  const renew = () => feed.renew();
  return new Section({
    name: "subscriptions", title: "Subscriptions", feed,
    words: (one) => `${one.id} ${one.topic} ${one.group} ${one.url}`,
    noun: "subscription", how: "A subscription posts the messages of a topic to a URL.",
    teaches: [
      "timerwheel subscriptions add orders https://example.com/orders --id hook --paused", "timerwheel subscriptions attempts hook",
      "timerwheel listen orders --forward-to localhost:3000",
    ],
    acts: () => offer("receive", button("New subscription…", () => edit(null, null, renew), { class: "primary" })),
    columns: [
      { head: "Subscription", kind: "mono name", cell: (one) => opener("subscription", one.id) },
      { head: "Topic", kind: "mono name", cell: (one) => one.topic },
      { head: "URL", kind: "long", cell: (one) => one.url },
      { head: "Status", kind: "long", cell: (one) => [
        statusSign(one), reason(one.disabled ?? failing(one)),
      ] },
      { head: "", kind: "acts", cell: (one) => !may("receive") ? null : el("div", { class: "row" },
        pauseButton(one, renew),
        button("Test", () => attempt(() => test(one)), { "data-key": `test ${one.id}`, "aria-label": `Test ${one.id}` })) },
    ],
  });
}
