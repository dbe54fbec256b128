// Schedules: recurring messages with their next runs; pause and resume.

import { call, path } from "./api.js";
import { button, el } from "./dom.js";
import { duration, exact, time } from "./format.js";
import { attempt, open, tell } from "./notices.js";
import { opener } from "./panels.js";
import { Section } from "./section.js";
import { facts, reason, table } from "./table.js";

const RUNS = 10;

/** Show one schedule; returns the dialog. */
export async function showSchedule(name) {
  const place = path`/v1/schedules/${name}`;
  const [schedule, { runs }] = await Promise.all([call("GET", place), call("GET", `${place}/runs?count=${RUNS}`)]);
  return open(`Schedule ${schedule.name}`, el("div", { class: "stack" },
    facts([
      ["Topic", schedule.topic], ["Recurs", recurs(schedule)], ["Missed runs", schedule.missed],
      ["Jitter", schedule.jitter_ms ? duration(schedule.jitter_ms) : null], ["Problem", schedule.problem],
      ["Body", el("pre", { class: "body" }, schedule.body ?? `base64: ${schedule.body_base64}`)],
    ]),
    el("h3", {}, "Next runs"),
    table("Next runs", [
      { head: "Here", kind: "mono", cell: (run) => time(run.run_ms) },
      { head: "UTC", kind: "mono", cell: (run) => exact(run.run_ms) },
    ], runs, "None: it is paused or has ended.")), { side: true });
}

function recurs(schedule) {
  if (schedule.cron) return `${schedule.cron} (${schedule.zone})`;
  return `every ${duration(schedule.every_ms)}`;
}

function state(schedule) {
  if (schedule.problem) return ["bad", "held up"];
  if (schedule.paused) return ["wait", "paused"];
  return schedule.next_run_ms === null ? ["wait", "over"] : ["good", "active"];
}

/** `feed` is the list of schedules. */
export function schedules(feed) {
  const change = (schedule, verb) => attempt(async () => {
    await call("POST", path`/v1/schedules/${schedule.name}/${verb}`);
    tell(`Schedule ${schedule.name}: ${verb === "pause" ? "paused" : "resumed"}.`);
    await feed.renew();
  });
  return new Section({
    name: "schedules", title: "Schedules", feed,
    words: (one) => `${one.name} ${one.topic}`,
    noun: "schedule", how: "“timerwheel schedules put” sends a message by cron or at an interval.",
    columns: [
      { head: "Schedule", kind: "mono name", cell: (one) => opener("schedule", one.name) },
      { head: "Topic", kind: "mono name", cell: (one) => one.topic },
      { head: "Recurs", kind: "mono name", cell: recurs },
      { head: "Next run", kind: "mono", cell: (one) => one.next_run_ms === null ? "–" : el("span", { title: exact(one.next_run_ms) }, time(one.next_run_ms)) },
      { head: "State", kind: "long", cell: (one) => [
        el("span", { class: "pill", "data-kind": state(one)[0] }, state(one)[1]), reason(one.problem),
      ] },
      { head: "", kind: "acts", cell: (one) => one.paused
        ? button("Resume", () => change(one, "resume"), { "data-key": `pause ${one.name}`, "aria-label": `Resume ${one.name}` })
        : button("Pause", () => change(one, "pause"), { "data-key": `pause ${one.name}`, "aria-label": `Pause ${one.name}` }) },
    ],
  });
}
