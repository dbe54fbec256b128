// Rates from totals: the growth per second between two ticks.

/** Returns {name: rate} for each total, or nothing at the first tick and after a restart. */
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
