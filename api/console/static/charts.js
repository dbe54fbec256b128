// Throughput and lateness, from the history that the service keeps and from the live stream: the last 15 minutes by
// second, or the last day by minute.

import { call } from "./api.js";
import { el } from "./dom.js";
import { fine, perSecond, rate, short } from "./format.js";
import { colour, Plot } from "./plot.js";

const STEPS = [
  { name: "15 min", step: "second", spanS: 900, leastS: 60, gapS: 5 },
  { name: "24 h", step: "minute", spanS: 86_400, leastS: 3_600, gapS: 150 },
];
const AGAIN_MS = 60_000; // the points of minutes are loaded again this often

/** One line chart of a history. */
class Lines {
  constructor(place, title, series, text, { dots = false } = {}) {
    this.title = title;
    this.series = series;
    this.text = text;
    this.plot = new Plot(place, {
      height: 182, title, y: { text: short, top: (high) => Math.max(high * 1.1, 5) },
      series: series.map(({ label }, index) => ({
        label, width: 1.5, points: { show: dots, size: 4 }, stroke: () => colour(`--line-${index + 1}`), spanGaps: false,
        value: (_plot, value) => (value === null || value === undefined ? "–" : text(value)),
      })),
    });
  }

  /** Draw {at, columns}: up to `spanS` before the last time, but of a young history at least `leastS`. */
  draw({ at, columns }, { spanS, leastS }) {
    const shown = this.series.map(({ name }) => columns[name]);
    const words = this.series.map(({ label }, index) => {
      const value = shown[index].at(-1);
      return `${label} ${value === undefined || value === null ? "none" : this.text(value)}`;
    });
    this.plot.show([at, ...shown], `${this.title}: ${words.join(", ")}`);
    if (!at.length) return;
    const shownS = Math.min(Math.max(at.at(-1) - at[0], leastS), spanS);
    this.plot.uplot.setScale("x", { min: at.at(-1) - shownS, max: at.at(-1) });
  }
}

const RATES = ["accepted", "fired", "recalled"];
const QUANTILES = ["lateness_ms_p50", "lateness_ms_p99"];

/** The points of one step, as columns; no more than the service keeps. */
class Points {
  constructor({ spanS, gapS }) {
    this.spanS = spanS;
    this.gapS = gapS;
    this.clear();
  }

  clear() {
    this.at = [];
    this.columns = Object.fromEntries([...RATES, ...QUANTILES].map((name) => [name, []]));
  }

  /** Add a point that is newer than the others: counts become rates per second. */
  add(point) {
    const second = point.at_ms / 1000;
    const last = this.at.at(-1) ?? -Infinity;
    if (second <= last) return;
    if (second > last + this.gapS && last > 0) this.#push(last + 1, () => null); // no data in between: a gap, not a line
    this.#push(second, (name) => (RATES.includes(name) ? perSecond(point, name) : point[name]));
    const over = this.at.findIndex((one) => one >= second - this.spanS);
    if (over > 0) for (const column of [this.at, ...Object.values(this.columns)]) column.splice(0, over);
  }

  #push(second, value) {
    this.at.push(second);
    for (const [name, column] of Object.entries(this.columns)) column.push(value(name));
  }
}

/** Both charts; `places` are {throughput, lateness, choice}. */
export class Charts {
  #step = STEPS[0];
  #turn = 0; // number of the newest request; answers to older ones are ignored
  #loading = false;
  #loadedMs = -Infinity;

  constructor(places) {
    this.points = new Map(STEPS.map((step) => [step, new Points(step)]));
    this.buttons = STEPS.map((step) => el("button", {
      type: "button", "aria-pressed": String(step === this.#step), on: { click: () => this.#choose(step) },
    }, step.name));
    places.choice.append(...this.buttons);
    this.lines = [
      new Lines(places.throughput, "Messages a second", RATES.map((name) => ({ name, label: name })), rate),
      new Lines(places.lateness, "Lateness in milliseconds", [
        { name: QUANTILES[0], label: "p50" }, { name: QUANTILES[1], label: "p99" },
      ], fine, { dots: true }), // a second in which messages fired may have neighbours in which none did
    ];
  }

  /** Load the history of the step that is shown; the service may have been restarted, or another token be in use. */
  async load() {
    const turn = ++this.#turn;
    const step = this.#step;
    this.#loading = true;
    try {
      const { now_ms: _now, ...history } = await call("GET", `/v1/live/history?step=${step.step}`);
      if (turn !== this.#turn) return;
      const points = this.points.get(step);
      points.clear();
      history.at_ms.forEach((_at, index) => points.add(Object.fromEntries(Object.entries(history).map(([name, column]) => [name, column[index]]))));
      this.#loadedMs = performance.now();
    } catch {
      // The line below the bar says that the service cannot be reached; the stream loads the history when it is back.
    } finally {
      if (turn === this.#turn) this.#loading = false;
    }
    this.#draw();
  }

  /** Take the newest second of the live stream. */
  take(second) {
    if (!second || document.hidden) return;
    const seconds = this.points.get(STEPS[0]);
    const newest = seconds.at.at(-1);
    if (second.at_ms / 1000 < newest) seconds.clear(); // the clock was set back
    seconds.add(second);
    if (this.#step === STEPS[0]) {
      // Seconds are missing after the page was in the background.
      if (newest === undefined || second.at_ms / 1000 > newest + STEPS[0].gapS) this.#again();
      else this.#draw();
    } else if (performance.now() - this.#loadedMs > AGAIN_MS) this.#again();
  }

  /** Load, unless that is under way: an answer that takes longer than a second must not be overtaken by each next one. */
  #again() {
    if (!this.#loading) this.load();
  }

  repaint() {
    for (const lines of this.lines) lines.plot.repaint();
  }

  #choose(step) {
    this.#step = step;
    this.buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(STEPS[index] === step)));
    return this.load();
  }

  #draw() {
    for (const lines of this.lines) lines.draw(this.points.get(this.#step), this.#step);
  }
}
