// The next rush: the earliest run of slots that hold far more messages than is usual on their ring.

const TIMES_USUAL = 3;
const MESSAGES_MIN = 10;
const SHARE_MIN = 0.2; // of the largest rush; a smaller one is not worth a call
const FILLED_MIN = 5; // slots in use from which on they show by themselves what is usual

function median(numbers) {
  const sorted = [...numbers].sort((one, other) => one - other);
  return sorted[Math.floor(sorted.length / 2)] ?? 0;
}

/** How many messages are usual for a slot in use. Slots far out are empty because their messages are still on the next ring. */
function usual(counts) {
  const filled = counts.filter((count) => count > 0);
  if (filled.length >= FILLED_MIN) return median(filled);
  return counts.reduce((sum, one) => sum + one, 0) / (counts.length || 1);
}

/** The rushes of one ring: runs of neighbouring slots that stand out. */
function rushesOf(ring, slots, nowMs) {
  const base = Math.floor(Math.max(nowMs, slots.movedUntilMs(ring.level)) / ring.slotMs);
  const last = Math.floor(nowMs / ring.slotMs) + ring.slots;
  const starts = Array.from({ length: Math.max(last - base, 0) }, (_, index) => (base + index) * ring.slotMs);
  const counts = starts.map((startMs) => slots.count(ring.level, startMs));
  const least = Math.max(MESSAGES_MIN, TIMES_USUAL * usual(counts));
  const found = [];
  counts.forEach((count, index) => {
    if (count < least) return;
    const run = found.at(-1);
    const fromMs = starts[index];
    const toMs = fromMs + ring.slotMs;
    if (run?.toMs === fromMs) {
      Object.assign(run, { toMs, count: run.count + count }, count > run.most ? { most: count, peakMs: fromMs } : null);
    } else found.push({ ring, fromMs, toMs, count, most: count, peakMs: fromMs });
  });
  return found;
}

/** The next rush as {ring, fromMs, toMs, count, peakMs}, the last the start of its fullest slot; null while messages are spread evenly. */
export function nextRush(rings, slots, nowMs) {
  const found = rings.flatMap((ring) => rushesOf(ring, slots, nowMs));
  const largest = Math.max(...found.map((rush) => rush.count));
  const worth = found.filter((rush) => rush.count >= SHARE_MIN * largest);
  return worth.sort((one, other) => one.fromMs - other.fromMs)[0] ?? null;
}
