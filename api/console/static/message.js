// One message: all its facts, and recall and reschedule while it is scheduled.

import { call, path } from "./api.js";
import { bodyOf } from "./body.js";
import { button, el, form } from "./dom.js";
import { distance, duration, exact, time } from "./format.js";
import { history } from "./history.js";
import { attempt, confirm, open, tell } from "./notices.js";
import { now } from "./now.js";
import { opener } from "./panels.js";
import { may } from "./rights.js";
import { facts } from "./table.js";
import { when, whenFields } from "./when.js";

const one = (id) => path`/v1/messages/${id}`;
const DEAD = "%DLQ%"; // before the name of the group whose dead letters a topic holds
const isLetter = (message) => message.topic.startsWith(DEAD);

/** A badge that shows the state of a message. A dead letter was delivered to where nobody works on it. */
export const stateSign = (message) => el("span", {
  class: "pill", "data-kind": isLetter(message) ? "over" : { scheduled: "wait", delivered: "good", recalled: "over" }[message.state] ?? "bad",
}, message.state);

const HALF_DUE_MS = 253_370_764_800_000; // of an open transaction, until it is committed, and of one that was rolled back
const COMMIT = "when its transaction is committed";

/** Whether a message has no due time: it belongs to a transaction that is open, or was rolled back. */
export const isHalf = (message) => message.due_ms === HALF_DUE_MS;

const AUTOMATIC = "auto:"; // before the keys that the Python client makes up for each send

/** The key of a message in a list, as somebody chose it; empty if nobody did. */
export const keyOf = ({ dedup_key: key, keys }) => (key && !key.startsWith(AUTOMATIC) ? key : keys?.join(" ") ?? "");

let remembered = null; // the message of the last link that was followed

/** Keep a message that was loaded with a list: a token may see it there, and not by its id. */
export const remember = (message) => (remembered = message);

/** Fetch and show a message; `changed` is called after a recall or reschedule. Returns the dialog. */
export async function showMessage(id, changed) {
  try {
    return show(await call("GET", one(id)), changed);
  } catch (error) {
    if (remembered?.id !== id || error.status < 400) throw error;
    return show(remembered, changed);
  }
}

function show(message, changed) {
  const place = el("div", { class: "stack" });
  const dialog = open(isLetter(message) ? "Dead letter" : "Message", place, { side: true });
  const renew = async () => {
    draw(place, await call("GET", one(message.id)), act);
    dialog.querySelector("button").focus(); // the pressed button may be gone
    changed?.();
  };
  const act = {
    recall: () => attempt(async () => {
      if (!(await confirm("Recall this message?", "It will not be delivered, and this cannot be undone.", "Recall it"))) return;
      await call("DELETE", one(message.id));
      tell("Recalled: it will not be delivered.");
      await renew();
    }),
    reschedule: (wanted) => attempt(async () => {
      const accepted = await call("PATCH", one(message.id), wanted);
      tell(accepted.state === "scheduled" ? `Rescheduled: due ${time(accepted.due_ms)}.` : "It was due and has been delivered.");
      await renew();
    }),
  };
  draw(place, message, act);
  return dialog;
}

function draw(place, message, act) {
  const nowMs = now();
  const at = (ms) => (ms === undefined ? null : el("span", {}, `${time(ms)} (${distance(ms, nowMs)}) `, el("small", { class: "quiet" }, exact(ms))));
  place.replaceChildren(
    facts([
      ["State", stateSign(message)], ["Id", el("code", {}, message.id)], ...(isLetter(message) ? died(message.properties) : []),
      ["Topic", opener("topic", message.topic)], ["Due", isHalf(message) ? message.state === "scheduled" && COMMIT : at(message.due_ms)],
      ["Accepted", at(message.enqueue_ms)], ["Delivered", at(message.delivered_ms)],
      ["Lateness", message.lateness_ms === undefined ? null : duration(message.lateness_ms)],
      ["Place", message.offset === undefined ? null : `queue ${message.queue}, offset ${message.offset}`],
      ["Recalled", at(message.recalled_ms)], ["Tags", message.tags], ["Keys", message.keys?.join(" ")],
      ["Deduplication key", message.dedup_key], ["Delay level", message.level && String(message.level)], ["Problem", message.problem],
    ]),
    el("h3", {}, "Body"),
    bodyOf(message),
    properties(message.properties),
    history(message.id),
    ...(message.state === "scheduled" && !isHalf(message) && may("send") ? [change(act)] : []),
  );
}

/** The facts in a dead letter about its original message. */
function died({ DLQ_ORIGIN_MESSAGE_ID: id, DLQ_ORIGIN_TOPIC: topic, DLQ_REASON: reason, DLQ_ATTEMPTS: attempts }) {
  return [
    ["A copy of", id && opener("message", id)],
    ["Of the topic", topic], ["Attempts", attempts], ["Reason", reason],
  ];
}

function properties(given) {
  const rows = Object.entries(given);
  if (!rows.length) return "";
  return el("details", {}, el("summary", {}, `Properties (${rows.length})`), facts(rows));
}

const change = (act) => form({ class: "stack" }, (given) => act.reschedule(when(given)),
  el("h3", {}, "Reschedule, same id"), whenFields(""),
  el("div", { class: "row spread" }, el("button", {}, "Reschedule"), button("Recall", act.recall, { class: "danger" })));
