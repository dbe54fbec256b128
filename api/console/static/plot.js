// One uPlot chart in an element: as wide as the element, in the colours of the theme.

import { el } from "./dom.js";
import { clock, day } from "./format.js";
import uPlot from "./vendor/uplot/uPlot.esm.js";

const DAY_S = 86_400;
const MINUTE_S = 60;
const probe = el("span", { hidden: true });

/** A colour of the style sheet in a form that a canvas takes. */
export function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** Labels of the x axis: dates if ticks are a day or more from each other, no seconds if a minute or more. */
function times(_plot, splits, _axis, _space, incrementS) {
  return splits.map((second) => {
    if (incrementS >= DAY_S) return day(second * 1000).slice(5);
    return clock(second * 1000, { seconds: incrementS < MINUTE_S });
  });
}

/** Without a pointer on the chart, the legend shows the newest values. */
function newest(plot) {
  if (!(plot.cursor.left >= 0)) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
}

export class Plot {
  /** `series` are uPlot's, without the first; `y` is {text, top, whole?}; `points` appear at the pointer. */
  constructor(place, { height, series, y, title, legend = true, points = true }) {
    this.place = place;
    this.box = el("div", { class: "plot", role: "img", "aria-label": title });
    place.append(this.box);
    const axis = {
      stroke: () => colour("--quiet"), font: "11px system-ui, sans-serif", ticks: { show: false },
      grid: { stroke: () => colour("--line"), width: 1 },
    };
    this.height = height;
    this.uplot = new uPlot({
      width: 300, height,
      padding: [8, 26, 0, 0], // at the right, half of the widest label
      cursor: { y: false, drag: { setScale: false, x: false, y: false }, points: { show: points, size: 6 } },
      legend: { show: legend, live: true, markers: { width: 2 } },
      hooks: { setLegend: [newest] },
      scales: { x: { time: true }, y: { range: (_plot, _low, high) => [0, y.top(high ?? 0)] } },
      axes: [
        { ...axis, size: 26, gap: 4, values: times, space: (plot) => (plot.width > 400 ? 90 : 56), grid: { show: false } },
        { ...axis, size: 46, gap: 4, values: (_plot, splits) => splits.map((value) => (y.whole && value % 1 ? "" : y.text(value))), space: 28 },
      ],
      series: [{ label: "Time", value: (_plot, second) => (second == null ? "–" : clock(second * 1000)) }, ...series],
    }, [[], ...series.map(() => [])], this.box);
    new ResizeObserver(() => this.#fit()).observe(place);
    this.#fit();
  }

  #fit() {
    const width = Math.floor(this.place.clientWidth);
    if (width > 0 && width !== this.uplot.width) this.uplot.setSize({ width, height: this.height });
  }

  /** Show new numbers, and their text for screen readers. */
  show(data, words) {
    this.uplot.setData(data);
    this.box.setAttribute("aria-label", words);
  }

  /** Redraw after a change of the theme. */
  repaint() {
    this.uplot.redraw(false, true);
  }
}
