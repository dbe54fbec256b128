// The geometry of the wheel: four rings around one needle, finest outside. The needle is now on all of them, and later
// is clockwise. A gap at the top separates the far end of a ring from now, and holds the letters.

import { SLOT_MS } from "./slots.js";

export const WIDTH = 660;
export const HEIGHT = 662;
export const X = 306;
export const Y = 344;
export const NEEDLE = 11; // degrees clockwise from the top
const ARC = 338; // degrees of a whole ring
const CALL = 42; // degrees at which the line to the words about a rush leaves the rings
const GAP = 0.9; // between slots, in units of the drawing

export const RINGS = [
  { level: "second", letter: "S", slots: 240, turn: "next 4 min", outer: 294, inner: 257, marks: [[60_000, "+1 min"], [120_000, "+2 min"], [180_000, "+3 min"]] },
  { level: "minute", letter: "M", slots: 180, turn: "next 3 h", outer: 247, inner: 210, marks: [[3_600_000, "+1 h"], [7_200_000, "+2 h"]] },
  { level: "hour", letter: "H", slots: 72, turn: "next 3 days", outer: 200, inner: 163, marks: [[86_400_000, "+1 d"], [172_800_000, "+2 d"]] },
  { level: "day", letter: "D", slots: 90, turn: "next 90 days", outer: 153, inner: 116, marks: [[30 * 86_400_000, "+30 d"], [60 * 86_400_000, "+60 d"]] },
].map((ring, number) => ({
  ...ring, number, slotMs: SLOT_MS[ring.level], stepDegrees: ARC / ring.slots, middle: (ring.outer + ring.inner) / 2,
}));

/** A point of the drawing: a radius, and degrees clockwise from the top. */
export function point(radius, degrees) {
  const angle = ((degrees - 90) * Math.PI) / 180;
  return [X + radius * Math.cos(angle), Y + radius * Math.sin(angle)];
}

const written = (radius, degrees) => point(radius, degrees).map((number) => number.toFixed(2)).join(" ");

/** The outline of a piece of a ring between two angles. */
function piece(outer, inner, from, to) {
  const large = to - from > 180 ? 1 : 0;
  return `M${written(outer, from)}A${outer} ${outer} 0 ${large} 1 ${written(outer, to)}`
    + `L${written(inner, to)}A${inner} ${inner} 0 ${large} 0 ${written(inner, from)}Z`;
}

/** The outline of a slot that begins at the needle; other slots are turned copies of it. */
export function slotOutline(ring) {
  const gapDegrees = ((GAP / 2 / ring.middle) * 180) / Math.PI;
  return piece(ring.outer, ring.inner, NEEDLE + gapDegrees, NEEDLE + ring.stepDegrees - gapDegrees);
}

/** The outline of all that may be seen of a ring: slots that have passed the needle are cut off there. */
export const ringOutline = (ring) => piece(ring.outer + 2, ring.inner - 2, NEEDLE, NEEDLE + ARC);

/** The angle of a time on a ring. */
export const angleAt = (ring, timeMs, nowMs) => NEEDLE + ((timeMs - nowMs) / ring.slotMs) * ring.stepDegrees;

/** The path of messages from one ring to the next: out to the gap between the two, along it, and into the ring. */
export function handOver(from, fromDegrees, to, toDegrees) {
  const between = (from.outer + to.inner) / 2;
  const steps = Math.max(Math.ceil(Math.abs(toDegrees - fromDegrees) / 6), 1);
  const along = Array.from({ length: steps + 1 }, (_, step) => written(between, fromDegrees + ((toDegrees - fromDegrees) * step) / steps));
  return `M${written(from.middle, fromDegrees)}L${along.join("L")}L${written(to.middle, toDegrees)}`;
}

/** The line from a slot to the words about it at the top right: out of the rings, and around them on the shorter side. */
export function callLine(ring, degrees) {
  const around = RINGS[0].outer + 14;
  const start = point(ring.outer, degrees);
  const [outX, outY] = point(around, degrees);
  const [endX, endY] = point(around, CALL);
  const sweep = degrees < CALL ? 1 : 0;
  const large = Math.abs(degrees - CALL) > 180 ? 1 : 0;
  return `M${start.map((number) => number.toFixed(1)).join(" ")}L${outX.toFixed(1)} ${outY.toFixed(1)}`
    + `A${around} ${around} 0 ${large} ${sweep} ${endX.toFixed(1)} ${endY.toFixed(1)}L${WIDTH - 110} 62`;
}
