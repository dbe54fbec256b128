// Schedules: recurring messages with their next runs; create, change, pause, resume, run now, delete.

import { IF_NEW, call, ifSame, path, seen } from "./api.js";
import { bodyOf } from "./body.js";
import { cronWords } from "./cron.js";
import { button, el, field, form } from "./dom.js";
import { counted, duration, exact, time } from "./format.js";
import { attempt, confirm, open, tell } from "./notices.js";
import { opener, reopen } from "./panels.js";
import { may, offer } from "./rights.js";
import { Section } from "./section.js";
import { facts, reason, table } from "./table.js";

const RUNS = 10;

const one = (name) => path`/v1/schedules/${name}`;

/** A time on the clock of a zone, such as Mon 2026-11-30 02:30:00. */
function inZone(ms, zone) {
  try {
    const parts = new Intl.DateTimeFormat("en-GB", {
      timeZone: zone, weekday: "short", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
    }).formatToParts(ms);
    const part = Object.fromEntries(parts.map(({ type, value }) => [type, value]));
    return `${part.weekday} ${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second}`;
  } catch {
    return exact(ms); // a zone that the service knows and this browser does not
  }
}

/** Show one schedule; returns the dialog. */
export async function showSchedule(name, feed) {
  const [[schedule, tag], { runs }] = await Promise.all([seen(one(name)), call("GET", `${one(name)}/runs?count=${RUNS}`)]);
  const changed = () => Promise.all([feed.renew(), reopen("schedule", name)]);
  const zone = schedule.zone;
  return open(`Schedule ${name}`, el("div", { class: "stack" },
    acts(schedule, tag, changed, feed),
    facts([
      ["Topic", schedule.topic], ["Recurs", recurs(schedule)], ["Rule", schedule.cron && el("code", {}, schedule.cron)], ["Zone", schedule.cron && zone],
      ["Missed runs", missed(schedule)], ["Jitter", schedule.jitter_ms ? duration(schedule.jitter_ms) : null], ["Problem", schedule.problem],
    ]),
    el("h3", {}, "Body"),
    bodyOf(schedule),
    el("h3", {}, "Next runs"),
    table("Next runs", [
      { head: zone === "UTC" ? "UTC" : `In ${zone}`, kind: "mono", cell: (run) => inZone(run.run_ms, zone) },
      { head: "Here", kind: "mono", cell: (run) => el("span", { title: exact(run.run_ms) }, time(run.run_ms)) },
    ], runs, "None: it is paused or has ended.")), { side: true });
}

/** What is sent in place of runs that were missed while the service was away. */
const MISSED = { once: "one message for all of them", skip: "nothing in their place", all: "a message for each" };

/** What is sent in place of missed runs, and how many were missed. */
const missed = ({ missed: policy, missed_runs: number = 0, missed_last_ms: lastMs }) => {
  const sent = MISSED[policy];
  return number ? `${counted(number, "run")} since the service started, the last ${time(lastMs)}; ${sent}` : sent;
};

function acts(schedule, tag, changed, feed) {
  if (!may("send")) return null;
  const { name } = schedule;
  return el("div", { class: "row" },
    button("Run now", () => runNow(name)),
    button("Edit…", () => editSchedule(schedule, tag, changed)),
    schedule.paused ? button("Resume", () => change(name, "resume", changed)) : button("Pause", () => change(name, "pause", changed)),
    button("Delete", () => attempt(async () => {
      if (!(await confirm(`Delete the schedule ${name}?`, "The run that it sent ahead is recalled.", "Delete it"))) return;
      await call("DELETE", one(name));
      tell(`Schedule ${name}: deleted.`);
      document.querySelector("dialog[open]")?.close();
      await feed.renew();
    }), { class: "danger" }));
}

const runNow = (name) => attempt(async () => {
  // The key makes a click once: a repeat after a lost answer sends nothing again.
  const key = `console-${crypto.getRandomValues(new Uint32Array(2)).join("")}`;
  const sent = await call("POST", `${one(name)}/run`, { key });
  tell(`Schedule ${name}: its message was sent to ${sent.topic}. The planned runs stay.`);
});

const change = (name, verb, changed) => attempt(async () => {
  await call("POST", `${one(name)}/${verb}`);
  tell(`Schedule ${name}: ${verb === "pause" ? "paused" : "resumed"}.`);
  await changed();
});

/** A text as a text area returns it. */
const lines = (text) => (text ?? "").replace(/\r\n?/g, "\n");

/** Ask for a schedule, new or changed, and store it: unless others have made it, or changed it since it had this tag. */
function editSchedule(schedule, tag, changed) {
  const isNew = schedule === null;
  const known = schedule ?? {};
  const keeps = known.body_base64 !== undefined; // the form has text only
  const store = async (given) => {
    const { name = known.name, topic, body, cron, every, zone, missed, jitter } = given;
    const spec = { topic, ...(keeps ? { body_base64: known.body_base64 } : { body: lines(body) === lines(known.body) ? known.body ?? "" : lines(body) }), missed, jitter_ms: Math.round(Number(jitter ?? 0) * 1000) };
    if (cron) Object.assign(spec, { cron, zone: zone ?? "UTC" });
    if (every) spec.every = every;
    if (known.properties) spec.properties = known.properties;
    for (const kept of ["start_ms", "end_ms", "skipped_hour", "repeated_hour", "paused"]) if (known[kept] !== undefined && known[kept] !== null) spec[kept] = known[kept];
    await call("PUT", one(name), spec, isNew ? IF_NEW : ifSame(tag));
    dialog.close();
    tell(`Schedule ${name}: ${isNew ? "created" : "changed"}.`);
    await changed(name);
  };
  const words = el("p", { class: "quiet small", role: "status" });
  const read = () => (words.textContent = asked.elements.cron.value ? cronWords(asked.elements.cron.value) : "");
  const asked = form({ class: "stack", on: { input: () => read() } }, (given) => attempt(() => store(given)),
    isNew ? field("Name", { name: "name", required: true, pattern: "[A-Za-z0-9_.\\-]{1,127}" }) : null,
    field("Topic", { name: "topic", required: true, list: "topic-names", value: known.topic }),
    field("Body", { name: "body", rows: 4, text: known.body, disabled: keeps, hint: keeps ? "bytes; they stay as they are" : null }),
    el("div", { class: "when" },
      field("Cron", { name: "cron", value: known.cron, placeholder: "30 2 * * 1-5" }),
      field("Zone of the cron rule", { name: "zone", value: known.zone ?? "UTC" })),
    words,
    el("div", { class: "when" },
      field("Or at an interval", { name: "every", value: known.every_ms ? `${known.every_ms}ms` : null, placeholder: "15m" }),
      field("Jitter, seconds", { name: "jitter", type: "number", min: 0, step: "any", value: (known.jitter_ms ?? 0) / 1000 })),
    el("label", { class: "field" }, el("span", {}, "Missed runs"), el("select", { name: "missed" },
      Object.entries(MISSED).map(([option, text]) => el("option", { value: option, selected: option === (known.missed ?? "once") }, text)))),
    el("div", { class: "row" }, el("button", { class: "primary" }, isNew ? "Create" : "Save")));
  const dialog = open(isNew ? "New schedule" : `Schedule ${known.name}`, asked);
  read();
}

function recurs(schedule) {
  return schedule.cron ? cronWords(schedule.cron) : `every ${duration(schedule.every_ms)}`;
}

function state(schedule) {
  if (schedule.problem) return ["bad", "held up"];
  if (schedule.paused) return ["wait", "paused"];
  return schedule.next_run_ms === null ? ["over", "over"] : ["good", "active"];
}

/** `feed` is the list of schedules. */
export function schedules(feed) {
  const renew = () => feed.renew();
  return new Section({
    name: "schedules", title: "Schedules", feed,
    words: (schedule) => `${schedule.name} ${schedule.topic}`,
    noun: "schedule", how: "A schedule sends a message by cron or at an interval.",
    teaches: ["timerwheel schedules put nightly reports 'make it' --cron '30 2 * * *'", "timerwheel schedules runs nightly", "timerwheel schedules run nightly"],
    acts: () => offer("send", button("New schedule…", () => editSchedule(null, null, renew), { class: "primary" })),
    columns: [
      { head: "Schedule", kind: "mono name", cell: (schedule) => opener("schedule", schedule.name) },
      { head: "Topic", kind: "mono name", cell: (schedule) => schedule.topic },
      { head: "Recurs", kind: "name", cell: (schedule) => el("span", { title: schedule.cron ?? null }, recurs(schedule),
        schedule.cron ? el("small", { class: "quiet" }, ` ${schedule.cron} (${schedule.zone})`) : null) },
      { head: "Next run", kind: "mono", cell: (schedule) => schedule.next_run_ms === null ? "–" : el("span", { title: exact(schedule.next_run_ms) }, time(schedule.next_run_ms)) },
      { head: "State", kind: "long", cell: (schedule) => [
        el("span", { class: "pill", "data-kind": state(schedule)[0] }, state(schedule)[1]), reason(schedule.problem),
      ] },
      { head: "", kind: "acts", cell: (schedule) => !may("send") ? null : el("div", { class: "row" },
        button("Run now", () => runNow(schedule.name), { "data-key": `run ${schedule.name}`, "aria-label": `Run now: ${schedule.name}` }),
        schedule.paused
          ? button("Resume", () => change(schedule.name, "resume", renew), { "data-key": `pause ${schedule.name}`, "aria-label": `Resume ${schedule.name}` })
          : button("Pause", () => change(schedule.name, "pause", renew), { "data-key": `pause ${schedule.name}`, "aria-label": `Pause ${schedule.name}` })) },
    ],
  });
}
