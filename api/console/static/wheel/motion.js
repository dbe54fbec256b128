// What moves on the wheel: messages that fire leave at the needle, and a slot that cascades flows to the next ring.
// Decoration only: the same facts are in the text below the wheel. Readers who ask for less motion get none of it.

import { svg } from "../dom.js";
import { angleAt, handOver, NEEDLE, point, RINGS } from "./rings.js";

const MARKS_MAX = 40; // elements in motion; more are left out
const SPARKS_MAX = 9;
const SPREAD = 16; // degrees between the outermost sparks
const FLIGHT = 30; // units that a spark flies

const less = matchMedia("(prefers-reduced-motion: reduce)");

export class Motion {
  constructor() {
    this.layer = svg("g", { class: "motion", "aria-hidden": "true" });
  }

  get #still() {
    return less.matches || document.hidden || this.layer.childElementCount > MARKS_MAX;
  }

  /** Messages have fired: sparks leave the outer ring at the needle, one more for each digit of their number. */
  fire(count) {
    if (!count || this.#still) return;
    const sparks = Math.min(2 * String(Math.round(count)).length - 1, SPARKS_MAX);
    const { outer } = RINGS[0];
    for (let number = 0; number < sparks; number += 1) {
      const degrees = NEEDLE + (sparks === 1 ? 0 : SPREAD * (number / (sparks - 1) - 0.5));
      const [fromX, fromY] = point(outer + 2, NEEDLE);
      const [toX, toY] = point(outer + FLIGHT, degrees);
      const spark = svg("circle", { class: "spark", cx: fromX, cy: fromY, r: 3.5 });
      spark.style.setProperty("--dx", `${(toX - fromX).toFixed(1)}px`);
      spark.style.setProperty("--dy", `${(toY - fromY).toFixed(1)}px`);
      this.#play(spark);
    }
  }

  /** A slot has cascaded: a line runs from it to its place on the next ring. */
  cascade(ring, startMs, nowMs) {
    if (this.#still) return;
    const finer = RINGS[ring.number - 1];
    const middle = startMs + ring.slotMs / 2;
    const from = Math.min(angleAt(ring, middle, nowMs), NEEDLE + ring.slots * ring.stepDegrees);
    const to = Math.min(angleAt(finer, middle, nowMs), NEEDLE + finer.slots * finer.stepDegrees);
    this.#play(svg("path", { class: "flow", d: handOver(ring, from, finer, to), pathLength: 1 }));
  }

  #play(element) {
    element.addEventListener("animationend", () => element.remove());
    this.layer.append(element);
  }
}
