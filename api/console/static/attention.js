// What needs attention, in one line of links: dead letters, groups far behind, failing endpoints, and so on. Also how
// many of them each tab has, and the title of the page.

import * as address from "./address.js";
import { el } from "./dom.js";
import { count, counted, duration, time } from "./format.js";
import { now } from "./now.js";

const LAG_MS = 60_000; // a group this far behind needs attention
const MISSED_MS = 86_400_000; // a missed run needs attention for so long
const TITLE = document.title;

/** What comes after the words of a trouble: why. */
const because = (reason) => (reason ? `– ${reason}` : null);

/** Troubles of consumer groups. */
function ofGroups(groups) {
  const dead = groups.filter((group) => group.dead_letters);
  const letters = dead.reduce((sum, group) => sum + group.dead_letters, 0);
  const late = groups.filter((group) => group.oldest_age_ms >= LAG_MS).sort((one, other) => other.oldest_age_ms - one.oldest_age_ms);
  const [worst] = late;
  const most = dead.sort((one, other) => other.dead_letters - one.dead_letters)[0];
  return [
    letters && {
      tab: "letters", count: letters, text: counted(letters, "dead letter"), more: dead.length > 1 ? `in ${dead.length} groups` : `of ${most.topic}/${most.group}`,
      href: address.to("letters", { group: `${most.topic}/${most.group}` }),
    },
    worst && {
      tab: "groups", count: late.length, text: `${worst.topic}/${worst.group} is ${duration(worst.oldest_age_ms)} behind`,
      more: `with a lag of ${count(worst.lag)}${late.length > 1 ? `, and ${counted(late.length - 1, "more group")}` : ""}`, href: address.to("groups", {}, `group:${worst.topic}/${worst.group}`),
    },
  ];
}

/** Troubles of push endpoints. */
function ofSubscriptions(subscriptions) {
  const failing = subscriptions.filter((one) => one.status === "failing" || one.disabled);
  const [first] = failing;
  return [first && {
    tab: "subscriptions", count: failing.length, text: failing.length > 1 ? `${failing.length} endpoints fail` : `${first.id} ${first.disabled ? "is disabled" : "fails"}`,
    more: because(first.disabled ?? first.last_error), href: failing.length > 1 ? address.to("subscriptions") : address.to("subscriptions", {}, `subscription:${first.id}`),
  }];
}

/** Schedules whose runs are held up, and those that missed some in the last day. */
function ofSchedules(schedules) {
  const held = schedules.filter((one) => one.problem);
  const late = schedules.filter((one) => !one.problem && one.missed_last_ms > now() - MISSED_MS);
  const [first] = held;
  const [latest] = late.sort((one, other) => other.missed_last_ms - one.missed_last_ms);
  const place = (found, one) => (found.length > 1 ? address.to("schedules") : address.to("schedules", {}, `schedule:${one.name}`));
  return [first && {
    tab: "schedules", count: held.length, text: held.length > 1 ? `${held.length} schedules miss runs` : `${first.name} misses runs`, more: because(first.problem),
    href: place(held, first),
  }, latest && {
    tab: "schedules", count: late.length, text: `${counted(late.reduce((sum, one) => sum + one.missed_runs, 0), "missed run")}`,
    more: `of ${late.length > 1 ? `${late.length} schedules` : latest.name}, the last ${time(latest.missed_last_ms, now())}`, href: place(late, latest),
  }];
}

/** Draws into `place`; `feeds` are {groups, subscriptions, schedules}; `marked(counts)` gets the number for each tab. */
export class Attention {
  #refusing = null;
  #overdue = 0;
  #away = null;

  constructor(place, feeds, marked) {
    this.place = place;
    this.feeds = feeds;
    this.marked = marked;
    for (const feed of Object.values(feeds)) feed.addEventListener("change", () => this.draw());
  }

  /** Take what the live stream says: why messages are refused, how many are overdue, and why it broke. */
  hear({ refusing = this.#refusing, overdue = this.#overdue, away = this.#away }) {
    if (refusing === this.#refusing && overdue === this.#overdue && away === this.#away) return;
    [this.#refusing, this.#overdue, this.#away] = [refusing, overdue, away];
    this.draw();
  }

  #found() {
    const { groups, subscriptions, schedules } = this.feeds;
    return [
      this.#refusing && { text: "New messages are refused", more: because(this.#refusing), href: address.to("topics") },
      this.#overdue && { tab: "messages", count: this.#overdue, text: `${count(this.#overdue)} overdue`, more: because("not fired a second after due"), href: address.to("messages", { overdue: 1 }) },
      ...ofGroups(groups.rows ?? []), ...ofSubscriptions(subscriptions.rows ?? []), ...ofSchedules(schedules.rows ?? []),
    ].filter(Boolean);
  }

  draw() {
    const found = this.#found();
    const items = found.map(({ text, more, href }) => el("li", {}, el("a", { href }, el("strong", {}, text), more ? el("span", {}, ` ${more}`) : null)));
    const content = el("ul", {}, items);
    this.place.hidden = !items.length;
    if (!this.place.querySelector("ul")?.isEqualNode(content)) this.place.querySelector("ul").replaceWith(content);
    const marks = {};
    for (const { tab, count: number } of found) if (tab) marks[tab] = (marks[tab] ?? 0) + number;
    this.marked(marks);
    const trouble = this.#away ?? found[0]?.text;
    const title = trouble ? `${found.length > 1 && !this.#away ? `(${found.length}) ` : ""}${trouble} – ${TITLE}` : TITLE;
    if (document.title !== title) document.title = title;
  }
}
