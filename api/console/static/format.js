// Numbers, times and durations in readable form. Times are in the browser's time zone.

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const TENTHS = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const FINE = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });
const TIME_MS_MAX = 8.64e15; // the latest time that Date can hold

const two = (number) => String(number).padStart(2, "0");

/** 12,345 */
export const count = (number) => WHOLE.format(number);

/** The number that a parameter of the address says; undefined if it says none. */
export const natural = (text) => (/^\d{1,15}$/.test(text ?? "") ? Number(text) : undefined);

/** 12.3K */
export const short = (number) => SHORT.format(number);

/** A duration of any size, with three digits. */
export const fine = (number) => (number >= 1000 ? WHOLE.format(number) : FINE.format(number));

/** A rate per second. */
export const rate = (number) => (number >= 100 ? WHOLE.format(number) : TENTHS.format(number));

/** The rate of something in a point of the figures, which counts it; undefined without a point. */
export const perSecond = (point, name) => (point ? (1000 * point[name]) / Math.max(point.span_ms, 1) : undefined);

/** 1 message, 2 messages */
export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** 2026-11-22 */
export function day(ms) {
  const date = new Date(ms);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

/** 22:14:05, or 22:14 for slots of minutes and more */
export function clock(ms, { seconds = true } = {}) {
  const date = new Date(ms);
  return `${two(date.getHours())}:${two(date.getMinutes())}${seconds ? `:${two(date.getSeconds())}` : ""}`;
}

/** The browser's zone: its name, and how far it is from GMT at a time, as GMT+1. */
export function zone(ms) {
  const format = new Intl.DateTimeFormat("en-GB", { timeZoneName: "shortOffset" });
  const offset = format.formatToParts(ms).find(({ type }) => type === "timeZoneName").value;
  return { name: format.resolvedOptions().timeZone, offset };
}

/** The time of day, with the date unless it is today. */
export function time(ms, now = Date.now()) {
  if (!(Math.abs(ms) <= TIME_MS_MAX)) return `${ms} ms`;
  return day(ms) === day(now) ? clock(ms) : `${day(ms)} ${clock(ms)}`;
}

/** 2026-11-22T22:14:05, for a field of time; empty without one. */
export const localTime = (ms) => (Math.abs(ms) <= TIME_MS_MAX ? `${day(ms)}T${clock(ms)}` : "");

/**
 * The time that the text of such a field means; undefined if it is empty. A text that still says `ms` means just that, to
 * the millisecond, and the right one of the two hours of a night in autumn.
 */
export function fieldTime(text, ms) {
  if (!text) return undefined;
  const wanted = new Date(text).getTime();
  return wanted === new Date(localTime(ms)).getTime() ? ms : wanted; // a browser leaves out seconds that are 0
}

/** RFC 3339 to the millisecond, for titles and for copying. */
export const exact = (ms) => (Math.abs(ms) <= TIME_MS_MAX ? new Date(ms).toISOString() : `${ms} ms`);

/** 250 ms, 4.2 s, 3 min 20 s, 2 h 5 min, 12 d 3 h */
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  const units = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1000, "s"]];
  const first = units.findIndex(([size]) => ms >= size);
  const [size, name] = units[first];
  const rest = units[first + 1];
  const more = rest ? Math.floor((ms % size) / rest[0]) : 0;
  return `${Math.floor(ms / size)} ${name}${more ? ` ${more} ${rest[1]}` : ""}`;
}

/** in 3 min 20 s, 4 s ago */
export const distance = (ms, now) => (ms >= now ? `in ${duration(ms - now)}` : `${duration(now - ms)} ago`);

/** A range of time, in its shortest form. */
export function span(fromMs, toMs, now = Date.now()) {
  if (toMs === undefined || toMs === null) return `from ${time(fromMs, now)} on`;
  if (fromMs === undefined || fromMs === null) return `before ${time(toMs, now)}`;
  return `${time(fromMs, now)} to ${day(fromMs) === day(toMs) ? clock(toMs) : time(toMs, now)}`;
}
