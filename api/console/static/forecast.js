// Counts of what fires in the next minute, hour, day and month, from the slots of the wheel.

import { el } from "./dom.js";
import { clock, count, day, short } from "./format.js";
import { colour, Plot } from "./plot.js";
import uPlot from "./vendor/uplot/uPlot.esm.js";

const SPANS = [
  { name: "minute", bars: 60, widthMs: 1_000 },
  { name: "hour", bars: 60, widthMs: 60_000 },
  { name: "day", bars: 24, widthMs: 3_600_000 },
  { name: "month", bars: 30, widthMs: 86_400_000 },
];

/** Draws into the given elements; calls `choose` with {title, fromMs, toMs, count} of the chosen bar. */
export class Forecast {
  #span = SPANS[1];
  #slots = null;
  #fromMs = 0;
  #counts = [];
  #shown = null; // the bar under the pointer or the keyboard cursor
  #words = "Waiting for the service";

  constructor(place, choices, choose) {
    this.choose = choose;
    this.buttons = SPANS.map((one) => el("button", {
      type: "button", "aria-pressed": String(one === this.#span), on: { click: () => this.#select(one) },
    }, one.name));
    choices.append(...this.buttons);
    this.summary = el("p", { class: "quiet small summary" }, this.#words);
    this.all = el("button", { type: "button", class: "link", hidden: true, on: { click: () => this.#chooseAll() } }, "List them");
    const shade = () => colour("--load-4");
    this.plot = new Plot(place, {
      height: 238, legend: false, points: false, title: "Messages that fall due",
      y: { text: short, whole: true, top: (high) => Math.max(high * 1.08, 4) },
      series: [{
        label: "Due", paths: uPlot.paths.bars({ size: [0.82, 60], align: 1 }), points: { show: false }, fill: shade, stroke: shade, width: 0,
      }],
    });
    place.append(el("div", { class: "row spread" }, this.summary, this.all));
    this.#listen(this.plot.uplot.over, this.plot.box);
  }

  /** Redraw for a new state of the slots, or a new second. */
  draw(slots, nowMs) {
    this.#slots = slots;
    const { bars, widthMs, name } = this.#span;
    this.#fromMs = Math.floor(nowMs / widthMs) * widthMs;
    this.#counts = slots.bars(this.#fromMs, widthMs, bars, nowMs);
    const sum = this.#sum();
    const most = this.#counts.indexOf(Math.max(...this.#counts));
    this.#words = sum
      ? `${count(sum)} due in the next ${name}, most at ${this.#at(most)}: ${count(this.#counts[most])}`
      : `Nothing is due in the next ${name}.`;
    this.all.hidden = !sum;
    // One empty place at the end, so that the last bar has its full width.
    const times = Array.from({ length: bars + 1 }, (_, index) => (this.#fromMs + index * widthMs) / 1000);
    this.plot.show([times, [...this.#counts, null]], this.#words);
    this.#tell(this.#shown);
  }

  repaint() {
    this.plot.repaint();
  }

  #sum() {
    return this.#counts.reduce((total, one) => total + one, 0);
  }

  /** When a bar begins. Days are UTC days, like the slots, so in other zones they do not begin at midnight. */
  #at(index) {
    const startMs = this.#fromMs + index * this.#span.widthMs;
    if (this.#span.widthMs < 86_400_000) return clock(startMs, { seconds: this.#span.widthMs < 60_000 });
    return clock(startMs) === "00:00:00" ? day(startMs) : `${day(startMs)} ${clock(startMs, { seconds: false })}`;
  }

  #select(one) {
    this.#span = one;
    this.#shown = null;
    this.buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(SPANS[index] === one)));
    if (this.#slots) this.draw(this.#slots, this.#slots.nowMs);
  }

  // ---------------------------------------------------------------- pointing and keys

  #listen(over, box) {
    over.addEventListener("pointermove", () => this.#tell(this.#pointed()));
    over.addEventListener("pointerleave", () => this.#tell(null));
    over.addEventListener("click", () => this.#choose(this.#pointed()));
    box.tabIndex = 0;
    box.role = "group";
    box.addEventListener("keydown", (event) => {
      const last = this.#counts.length - 1;
      const at = this.#shown ?? -1;
      const act = {
        ArrowRight: () => this.#tell(Math.min(at + 1, last)), ArrowLeft: () => this.#tell(Math.max(at - 1, 0)),
        Home: () => this.#tell(0), End: () => this.#tell(last), Enter: () => this.#choose(this.#shown),
      }[event.key];
      if (!act || last < 0) return;
      act();
      this.#mark();
      event.preventDefault();
    });
    // Announce a bar when the reader moves to it, but not when a count changes by itself.
    box.addEventListener("focus", () => this.summary.setAttribute("aria-live", "polite"));
    box.addEventListener("blur", () => {
      this.summary.removeAttribute("aria-live");
      this.#tell(null);
      this.#mark();
    });
  }

  /** Draw the pointer's line at the keyboard cursor. */
  #mark() {
    const { uplot } = this.plot;
    const middleMs = this.#fromMs + ((this.#shown ?? 0) + 0.5) * this.#span.widthMs;
    uplot.setCursor({ left: this.#shown === null ? -1 : uplot.valToPos(middleMs / 1000, "x"), top: 0 });
  }

  /** The bar under the pointer; null if there is none. */
  #pointed() {
    const { left } = this.plot.uplot.cursor;
    if (!(left >= 0)) return null;
    const index = Math.floor((this.plot.uplot.posToVal(left, "x") * 1000 - this.#fromMs) / this.#span.widthMs);
    return index >= 0 && index < this.#counts.length ? index : null;
  }

  #tell(index) {
    this.#shown = index;
    this.summary.textContent = index === null ? this.#words : `${this.#at(index)}: ${count(this.#counts[index])} due`;
  }

  #choose(index) {
    if (index === null) return;
    const fromMs = this.#fromMs + index * this.#span.widthMs;
    this.#list(fromMs, fromMs + this.#span.widthMs);
  }

  #chooseAll() {
    this.#list(this.#fromMs, this.#fromMs + this.#span.bars * this.#span.widthMs);
  }

  #list(fromMs, toMs) {
    this.choose({ fromMs, toMs });
  }
}
