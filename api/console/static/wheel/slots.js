// The latest counts of the slots, for the wheel, the histogram and the numbers.

export const SLOT_MS = { second: 1_000, minute: 60_000, hour: 3_600_000, day: 86_400_000 };
const LEVELS = Object.keys(SLOT_MS);

/** The slots in use of all levels, as of one moment. */
export class Slots {
  constructor(event) {
    this.nowMs = event.now_ms;
    this.overdue = event.overdue;
    this.counts = {};
    this.later = {};
    this.moved = {};
    for (const level of event.levels) {
      this.counts[level.level] = new Map(level.slots);
      this.later[level.level] = level.later;
      this.moved[level.level] = level.moved_until_ms ?? 0;
    }
  }

  static none() {
    return new Slots({ now_ms: 0, overdue: 0, levels: LEVELS.map((level) => ({ level, slots: [], later: 0 })) });
  }

  /** The count of one slot. */
  count(level, startMs) {
    return this.counts[level].get(startMs) ?? 0;
  }

  /** Slots of a level that end at this time or before have moved to the next finer level; 0 for the finest. */
  movedUntilMs(level) {
    return this.moved[level];
  }

  /** The slots in use that move away when a level has moved up to a time: [{startMs, count}]. */
  movedSince(level, untilMs) {
    const found = [...this.counts[level]].map(([startMs, count]) => ({ startMs, count }));
    return found.filter((slot) => slot.startMs >= this.moved[level] && slot.startMs + SLOT_MS[level] <= untilMs);
  }

  /** Slots in use and messages of a level, over slots that end after one time and begin before another. */
  sum(level, fromMs, untilMs = Infinity) {
    let slots = 0;
    let count = 0;
    for (const [startMs, waiting] of this.counts[level]) {
      if (startMs + SLOT_MS[level] > fromMs && startMs < untilMs) {
        slots += 1;
        count += waiting;
      }
    }
    return { slots, count };
  }

  /** The count of a level from a time on, at which a slot begins. */
  beyond(level, fromMs) {
    return this.sum(level, fromMs).count + this.later[level];
  }

  /** The earliest slot in use that is not over: {level, startMs, count}, or null. */
  first(nowMs) {
    let found = null;
    for (const level of LEVELS) {
      for (const [startMs, waiting] of this.counts[level]) {
        if (startMs + SLOT_MS[level] <= nowMs) continue;
        if (!found || startMs < found.startMs) found = { level, startMs, count: waiting };
        break; // the slots are in order
      }
    }
    return found;
  }

  /** The counts of `bars` intervals of `widthMs` from `fromMs` on. */
  bars(fromMs, widthMs, bars, nowMs) {
    const counts = new Array(bars).fill(0);
    for (const level of LEVELS) {
      for (const [startMs, waiting] of this.counts[level]) {
        if (startMs + SLOT_MS[level] <= nowMs) continue;
        const index = Math.max(Math.floor((startMs - fromMs) / widthMs), 0);
        if (index < bars) counts[index] += waiting;
      }
    }
    return counts;
  }
}
