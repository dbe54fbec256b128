// A cron expression in words. What has no short form in words stays as it is.

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS = ["", "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const NAMED = {
  "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
  "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
};
const SHORT = { sun: 0, mon: 1, tue: 2, wed: 3, thu: 4, fri: 5, sat: 6 };
const SHORT_MONTHS = { jan: 1, feb: 2, mar: 3, apr: 4, may: 5, jun: 6, jul: 7, aug: 8, sep: 9, oct: 10, nov: 11, dec: 12 };

const two = (number) => String(number).padStart(2, "0");
const list = (words) => (words.length > 1 ? `${words.slice(0, -1).join(", ")} and ${words.at(-1)}` : words[0]);
const number = (text) => (/^\d+$/.test(text) ? Number(text) : null);

/** Words for days, months or days of the month, such as "Monday to Friday"; null if there are none. */
function named(text, names, numbers) {
  const word = (one) => {
    const value = number(one) ?? numbers?.[one.toLowerCase()] ?? null;
    return value === null ? null : names ? names[value] : String(value);
  };
  const parts = text.split(",").map((part) => {
    const ends = part.split("-").map(word);
    return ends.length > 2 || ends.some((one) => one === null || one === undefined) ? null : ends.join(" to ");
  });
  return parts.includes(null) ? null : list(parts);
}

function timeOfDay(minute, hour) {
  const every = minute.match(/^\*\/(\d+)$/);
  if (hour === "*" && minute === "*") return "every minute";
  if (hour === "*" && every) return `every ${every[1]} minutes`;
  if (hour === "*" && number(minute) !== null) return `every hour at minute ${number(minute)}`;
  const hours = hour.match(/^\*\/(\d+)$/);
  if (hours && number(minute) !== null) return `every ${hours[1]} hours at minute ${number(minute)}`;
  const at = hour.split(",").map(number);
  if (number(minute) === null || at.includes(null)) return null;
  return `at ${list(at.map((one) => `${two(one)}:${two(number(minute))}`))}`;
}

/** "at 02:30 on Monday to Friday"; the expression itself if it has no short form. */
export function cronWords(cron) {
  const fields = (NAMED[cron.trim().toLowerCase()] ?? cron).trim().split(/\s+/);
  if (fields.length !== 5) return cron;
  const [minute, hour, day, month, weekday] = fields;
  const time = timeOfDay(minute, hour);
  const days = day === "*" ? "" : named(day);
  const months = month === "*" ? "" : named(month, MONTHS, SHORT_MONTHS);
  const weekdays = weekday === "*" ? "" : named(weekday, DAYS, SHORT);
  if (time === null || days === null || months === null || weekdays === null) return cron;
  const on = [
    days && `on day ${days} of ${months || "each month"}`, !days && months && `in ${months}`, weekdays && `${days ? "or " : ""}on ${weekdays}`,
  ].filter(Boolean);
  const daily = time.startsWith("at ") && !on.length ? "every day " : "";
  return [daily + time, ...on].join(" ");
}
