// Rates from totals: what grew by how much a second between two ticks.

/** Gives {name: rate} for each name of the totals, or nothing at the first tick and after a restart. */
export class Rates {
  #before = null;

  of(tick, names) {
    const before = this.#before;
    this.#before = tick;
    const rates = {};
    if (!before || tick.now_ms <= before.now_ms) return rates;
    const seconds = (tick.now_ms - before.now_ms) / 1000;
    for (const name of names) {
      const grown = tick.measures[name] - before.measures[name];
      if (grown >= 0) rates[name] = grown / seconds;
    }
    return rates;
  }
}
