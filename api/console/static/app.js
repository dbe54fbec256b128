// The console: creates the parts of the page and connects them.

import { keepToken, onTokenNeeded, token } from "./api.js";
import { lateness, throughput } from "./charts.js";
import { Forecast } from "./forecast.js";
import { clock, day, time } from "./format.js";
import { groups } from "./groups.js";
import { Letters } from "./letters.js";
import { Live } from "./live.js";
import { Messages } from "./messages.js";
import { offerTopics } from "./names.js";
import { askToken } from "./notices.js";
import { hear, now } from "./now.js";
import { Rates } from "./rates.js";
import { schedules } from "./schedules.js";
import { sendTest } from "./send.js";
import { Slots } from "./slots.js";
import { Stats } from "./stats.js";
import { subscriptions } from "./subscriptions.js";
import { Tabs } from "./tabs.js";
import * as theme from "./theme.js";
import { topics } from "./topics.js";
import { Wheel } from "./wheel.js";

const AWAY = { unauthenticated: "no token", not_ready: "not ready" }; // keyed by the problem's code, when the stream fails
const TOTALS = ["accepted_total", "fired_total", "recalled_total"];
const place = (id) => document.getElementById(id);

theme.restore();
onTokenNeeded((detail) => askToken(detail, token()));

// ------------------------------------------------------------------ lists

const messages = new Messages();
const letters = new Letters();
const tabs = new Tabs(place("tabs"), place("panels"), [
  messages,
  topics((topic) => list({ title: `Waiting for ${topic}`, topic })),
  groups((group) => {
    letters.choose(group);
    tabs.open("letters");
  }),
  letters,
  subscriptions(),
  schedules(),
]);
offerTopics(place("topic-names"));

function list(asked) {
  messages.ask(asked);
  if (!tabs.open("messages")) messages.load();
  messages.focus();
}

// ------------------------------------------------------------------ live

const wheel = new Wheel(place("wheel"), list);
const forecast = new Forecast(place("forecast"), place("spans"), list);
const stats = new Stats(place("stats"), () => list({ title: "Overdue", toMs: now() }));
const fast = throughput(place("throughput"));
const late = lateness(place("lateness"));
const rates = new Rates();
const live = new Live();
let slots = Slots.none();
let heardMs = 0; // time of the last event, by the service's clock
let away = false;

live.addEventListener("wheel", ({ detail }) => {
  slots = new Slots(detail);
  wheel.take(slots);
  forecast.draw(slots, detail.now_ms);
});

live.addEventListener("tick", ({ detail: tick }) => {
  hear(tick.now_ms);
  heardMs = tick.now_ms;
  const grown = rates.of(tick, TOTALS);
  const { fired_total: fired, lateness_ms_p50: half, lateness_ms_p99: most } = tick.measures;
  stats.draw(tick, slots, grown);
  fast.add(tick.now_ms, TOTALS.map((name) => grown[name]));
  late.add(tick.now_ms, fired ? [half, most] : []);
  wheel.draw(tick.now_ms, tick.pending);
  if (slots.nowMs) forecast.draw(slots, tick.now_ms);
  place("clock").textContent = `${day(tick.now_ms)} ${clock(tick.now_ms)}`;
  say(tick.refusing ? `New messages are refused: ${tick.refusing}` : "");
});

live.addEventListener("state", ({ detail: { live: heard, detail, code } }) => {
  const state = place("state");
  const text = heard ? detail : (AWAY[code] ?? "not connected");
  if (state.textContent !== text) state.textContent = text;
  state.dataset.kind = heard && detail === "ready" ? "good" : "bad";
  document.body.classList.toggle("stale", !heard);
  if (!heard) say(code === "unauthenticated" ? detail : `${detail} ${meanwhile()}`);
  if (heard && away) tabs.renew(); // lists that load once would keep their error
  away = !heard;
});

/** Show that the service is away until it is heard again. */
function meanwhile() {
  return `The page reconnects by itself.${heardMs ? ` It shows the state as of ${time(heardMs)}.` : ""}`;
}

/** The line below the bar: what is wrong with the whole page. */
function say(text) {
  const line = place("trouble");
  if (line.textContent !== text) line.textContent = text;
  line.hidden = !text;
}

// ------------------------------------------------------------------ the bar

place("send").addEventListener("click", () => sendTest((id) => messages.open(id), () => messages.load()));
place("token").addEventListener("click", async () => {
  const given = await askToken("The token to send with calls. Leave it empty to send none.", token());
  if (given === null) return;
  keepToken(given);
  live.restart();
  tabs.renew();
});
theme.install(place("theme"), () => [forecast, fast, late].forEach((chart) => chart.repaint()));

live.run();
