// Recall of many: take conditions, count the matches, and only then recall.

import { call } from "./api.js";
import { button, el, field, form } from "./dom.js";
import { counted, span } from "./format.js";
import { attempt, open, tell } from "./notices.js";

/** Ask for conditions, prefilled with {topic, tag, key, fromMs, toMs, reserved}; `changed` is called after a recall. */
export function recallMany({ topic, tag, key, fromMs, toMs, reserved }, changed) {
  const bounded = fromMs !== undefined || toMs !== undefined;
  let agreed = null; // the counted conditions, while the fields still hold the same
  let counting = null;
  const outcome = el("p", { role: "status" }, "Nothing is recalled before you have seen how many messages match.");
  const count = async (given) => {
    const mine = forget();
    const asked = { ...given, reserved: given.reserved ? true : undefined, due_from_ms: fromMs, due_to_ms: toMs };
    const { matched } = await call("POST", "/v1/messages/recall", { ...asked, dry_run: true });
    if (counting !== mine) return; // the fields have changed since
    outcome.textContent = matched
      ? `${counted(matched, "scheduled message")} would be recalled. This cannot be undone.`
      : "No scheduled message matches all of these.";
    if (!matched) return;
    agreed = asked;
    recall.textContent = `Recall ${counted(matched, "message")}`;
    recall.hidden = false;
  };
  const recall = button("Recall", () => attempt(async () => {
    const { recalled, missed } = await call("POST", "/v1/messages/recall", agreed);
    dialog.close();
    tell(`Recalled ${counted(recalled, "message")}${missed ? `; ${missed} fired during the call or cannot be read` : ""}.`);
    changed();
  }), { class: "danger", hidden: true });
  const forget = () => {
    agreed = null;
    recall.hidden = true;
    return (counting = {});
  };
  const asked = form({ class: "stack", on: { input: forget } }, (given) => attempt(() => count(given)),
    field("Topic", { name: "topic", value: topic, list: "topic-names" }),
    field("Tags", { name: "tags", value: tag, placeholder: "paid || shipped" }),
    field("Key begins with", { name: "key_prefix", value: key, hint: "the deduplication key, or one of the keys" }),
    bounded ? el("p", {}, `Due ${span(fromMs, toMs)} only.`) : null,
    el("label", { class: "row" }, el("input", { type: "checkbox", name: "reserved", checked: reserved }),
      "Also the service's own: tasks, retries, dead letters"),
    outcome,
    el("div", { class: "row" }, el("button", {}, "Count them"), recall));
  const dialog = open("Recall many", asked);
}
