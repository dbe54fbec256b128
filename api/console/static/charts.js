// Throughput and lateness of the last minutes, one point per second, from the ticks of the live stream.

import { fine, rate, short } from "./format.js";
import { colour, Plot } from "./plot.js";

const POINTS_MAX = 300;
const GAP_S = 5;

/** A line chart that grows by one point at a time. */
class Lines {
  #times = [];
  #values = [];

  constructor(place, title, names, text) {
    this.title = title;
    this.names = names;
    this.text = text;
    this.#clear();
    this.plot = new Plot(place, {
      height: 182, title, y: { text: short, top: (high) => Math.max(high * 1.1, 5) },
      series: names.map((name, index) => ({
        label: name, width: 1.5, points: { show: false }, stroke: () => colour(`--line-${index + 1}`), spanGaps: false,
        value: (_plot, value) => (value === null || value === undefined ? "–" : text(value)),
      })),
    });
  }

  /** Add the values of one second, in the order of the names; undefined where a value is unknown. */
  add(timeMs, values) {
    const second = timeMs / 1000;
    const last = this.#times.at(-1) ?? second;
    if (second < last) this.#clear(); // the clock was set back
    if (second > last + GAP_S) this.#push(last + 1, []); // no data in between: draw a gap, not a line
    this.#push(second, values);
    const words = this.names.map((name, index) => `${name} ${values[index] === undefined ? "unknown" : this.text(values[index])}`);
    this.plot.show([this.#times, ...this.#values], `${this.title}: ${words.join(", ")}`);
    this.plot.uplot.setScale("x", { min: second - POINTS_MAX, max: second });
  }

  #push(second, values) {
    this.#times.push(second);
    this.#values.forEach((column, index) => column.push(values[index] ?? null));
    if (this.#times.length <= POINTS_MAX) return;
    this.#times.shift();
    this.#values.forEach((column) => column.shift());
  }

  #clear() {
    this.#times = [];
    this.#values = this.names.map(() => []);
  }

  repaint() {
    this.plot.repaint();
  }
}

/** Messages a second. */
export const throughput = (place) =>
  new Lines(place, "Messages a second", ["accepted", "fired", "recalled"], rate);

/** Milliseconds after the due time. */
export const lateness = (place) =>
  new Lines(place, "Lateness in milliseconds", ["half", "99 of 100"], fine);
