// The console: creates the parts of the page and connects them.

import * as address from "./address.js";
import { keepToken, onTokenNeeded, token } from "./api.js";
import { Attention } from "./attention.js";
import { Charts } from "./charts.js";
import { Cluster } from "./cluster.js";
import { Feed } from "./feed.js";
import { whenDue } from "./filter.js";
import { Forecast } from "./forecast.js";
import { clock, day, perSecond, time, zone } from "./format.js";
import { groups, showGroup } from "./groups.js";
import { Letters } from "./letters.js";
import { Live } from "./live.js";
import { showMessage } from "./message.js";
import { Messages } from "./messages.js";
import { offerTopics } from "./names.js";
import { askToken } from "./notices.js";
import { hear } from "./now.js";
import { Panels } from "./panels.js";
import * as rights from "./rights.js";
import { schedules, showSchedule } from "./schedules.js";
import { sendTest } from "./send.js";
import { Stats } from "./stats.js";
import { showSubscription, subscriptions } from "./subscriptions.js";
import { Tabs } from "./tabs.js";
import * as theme from "./theme.js";
import { showTopic, topics } from "./topics.js";
import { Slots } from "./wheel/slots.js";
import { Wheel } from "./wheel/wheel.js";

const AWAY = { unauthenticated: "no token", not_ready: "not ready" }; // keyed by the problem's code, when the stream fails
const place = (id) => document.getElementById(id);

theme.restore();
onTokenNeeded((detail) => askToken(detail, token()));

// ------------------------------------------------------------------ lists

const feeds = {
  topics: new Feed("/v1/topics", "topics", { reserved: false }), // dead letters have a list of their own
  groups: new Feed("/v1/groups", "groups", { always: true }),
  subscriptions: new Feed("/v1/subscriptions", "subscriptions", { always: true }),
  schedules: new Feed("/v1/schedules", "schedules", { always: true }),
};
const messages = new Messages();
const cluster = new Cluster();
const tabs = new Tabs(place("tabs"), place("panels"), [
  messages, topics(feeds.topics), groups(feeds.groups), new Letters(feeds.groups),
  subscriptions(feeds.subscriptions), schedules(feeds.schedules), cluster,
]);
tabs.offer(cluster.name, address.read().list === cluster.name);
const attention = new Attention(place("attention"), feeds, (counts) => tabs.mark(counts));
offerTopics(place("topic-names"));
new Panels({
  message: (id) => showMessage(id, () => messages.load()),
  topic: (name) => showTopic(name, feeds.topics),
  group: (name) => showGroup(name, feeds.groups),
  subscription: (id) => showSubscription(id, feeds.subscriptions),
  schedule: (name) => showSchedule(name, feeds.schedules),
});

/** List the messages of a slot or a period. */
function list(when) {
  address.go(address.to("messages", whenDue(when)));
  messages.focus();
}

/** After a change of the token, or when the service is back. */
function renewLists() {
  tabs.renew();
  offerCluster();
  charts.load();
  rights.learn();
  for (const feed of Object.values(feeds)) if (feed.poll.always) feed.renew();
}

/** A service of one process has no such list. */
async function offerCluster() {
  tabs.offer(cluster.name, (await cluster.exists()) || address.read().list === cluster.name);
}

// ------------------------------------------------------------------ live

const wheel = new Wheel(place("wheel"), list);
const forecast = new Forecast(place("forecast"), place("spans"), list);
const stats = new Stats(place("stats"));
const charts = new Charts({ throughput: place("throughput"), lateness: place("lateness"), choice: place("history") });
const live = new Live();
let slots = Slots.none();
let heardMs = 0; // time of the last event, by the service's clock
let away = false;

live.addEventListener("wheel", ({ detail }) => {
  slots = new Slots(detail);
  wheel.take(slots);
  forecast.draw(slots, detail.now_ms);
  attention.hear({ overdue: slots.overdue });
});

live.addEventListener("tick", ({ detail: tick }) => {
  hear(tick.now_ms);
  heardMs = tick.now_ms;
  stats.draw(tick, slots);
  charts.take(tick.second);
  wheel.draw(tick.now_ms, { pending: tick.pending, fired: perSecond(tick.second, "fired") ?? 0 });
  if (slots.nowMs) forecast.draw(slots, tick.now_ms);
  const { name, offset } = zone(tick.now_ms);
  place("clock").textContent = `${day(tick.now_ms)} ${clock(tick.now_ms)} ${offset}`;
  place("zone").textContent = `Times are in ${name}${name === offset ? "" : ` (${offset})`}, the zone of this browser.`;
  attention.hear({ refusing: tick.refusing, away: null });
  say("");
});

live.addEventListener("state", ({ detail: { live: heard, detail, code } }) => {
  const state = place("state");
  const text = heard ? detail : (AWAY[code] ?? "not connected");
  if (state.textContent !== text) state.textContent = text;
  state.dataset.kind = heard && detail === "ready" ? "good" : "bad";
  document.body.classList.toggle("stale", !heard);
  if (!heard) say(code === "unauthenticated" ? detail : `${detail} ${reconnecting()}`);
  if (!heard) attention.hear({ away: text });
  if (heard && away) renewLists(); // lists that load once would keep their error
  away = !heard;
});

/** Show that the service is away until it is heard again. */
function reconnecting() {
  return `The page reconnects by itself.${heardMs ? ` It shows the state as of ${time(heardMs)}.` : ""}`;
}

/** The line below the bar: what is wrong with the whole page. */
function say(text) {
  const line = place("trouble");
  if (line.textContent !== text) line.textContent = text;
  line.hidden = !text;
}

// ------------------------------------------------------------------ the bar

place("send").addEventListener("click", () => sendTest((id) => address.go(address.toPanel("message", id)), () => messages.load()));
place("token").addEventListener("click", async () => {
  const given = await askToken("The token to send with calls. Leave it empty to send none.", token());
  if (given === null) return;
  keepToken(given);
  live.restart();
  renewLists();
});
theme.install(place("theme"), () => [forecast, charts].forEach((chart) => chart.repaint()));

charts.load();
rights.learn();
offerCluster();
rights.changes.addEventListener("change", () => (place("send").hidden = !rights.may("send")));
live.run();
