// Runs clients/scenarios.json against the service at TIMERWHEEL_URL; prints a line for each scenario. A call may take
// TIMERWHEEL_TIMEOUT_MS. With TIMERWHEEL_SPEED, pauses and leases of the client pass so many times as fast.
import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import { Timerwheel, TimerwheelError, bytesOf, jsonOf, type Held, type NewMessage } from "../src/index.js";

interface Step {
  do: string;
  topic: string;
  group: string;
  id: string;
  receipt: string;
  body?: string;
  json?: unknown;
  bodies?: string[];
  delay_ms?: number;
  key?: string;
  save?: string;
  expect?: Record<string, unknown>;
  error?: string;
  count?: number;
  max: number;
  wait_ms: number;
  lasts_ms: number;
  backoff_ms: number;
  reason: string;
  concurrency: number;
  fail_once?: string;
  fail_with?: string;
  on_duplicate?: "replace" | "return";
  after_recall?: string;
  until: number;
  handled?: Record<string, number>;
}
type Fields = Record<string, unknown>;

const speed = Number(process.env["TIMERWHEEL_SPEED"] ?? 1);
if (speed !== 1) {
  const [later, now] = [globalThis.setTimeout, performance.now.bind(performance)];
  const sooner = (done: () => void, ms: number, ...own: []): NodeJS.Timeout =>
    later(done, own.length ? ms : ms / speed, ...own); // those of fetch have a value of their own
  globalThis.setTimeout = sooner as typeof setTimeout;
  performance.now = (): number => now() * speed;
}
const [, , file = "", prefix = ""] = process.argv;
const timerwheel = new Timerwheel({
  url: process.env["TIMERWHEEL_URL"] ?? "",
  timeoutMs: Number(process.env["TIMERWHEEL_TIMEOUT_MS"] ?? 30_000),
});
const text = readFileSync(file, "utf8").replaceAll("{p}", prefix);
const { scenarios } = JSON.parse(text) as { scenarios: { name: string; steps: Step[] }[] };

function textOf(message: Held): string {
  return new TextDecoder().decode(bytesOf(message));
}

function check(holds: boolean, what: string): void {
  if (!holds) throw new Error(what);
}

function message(step: Step, body = step.body): NewMessage {
  return {
    topic: step.topic,
    ...(body === undefined ? {} : { body }),
    ...(step.json === undefined ? {} : { json: step.json }),
    ...(step.delay_ms === undefined ? {} : { delay_ms: step.delay_ms }),
    ...(step.key === undefined ? {} : { dedup_key: step.key }),
    ...(step.on_duplicate === undefined ? {} : { on_duplicate: step.on_duplicate }),
    ...(step.after_recall === undefined ? {} : { after_recall: step.after_recall }),
  };
}

async function act(step: Step): Promise<Fields | undefined> {
  const group = timerwheel.group(step.topic, step.group);
  switch (step.do) {
    case "send":
      return { ...(await timerwheel.send(message(step))) };
    case "send_many": {
      const found = await timerwheel.sendMany((step.bodies ?? []).map((body) => message(step, body)));
      check(found.length === step.count, `${found.length} receipts`);
      return undefined;
    }
    case "get":
      return { ...(await timerwheel.get(step.id)) };
    case "recall":
      return { ...(await timerwheel.recall(step.id)) };
    case "reschedule":
      return { ...(await timerwheel.reschedule(step.id, `${step.delay_ms}ms`)) };
    case "receive": {
      const found = await group.receive(step.max, step.wait_ms);
      check(found.length === step.count, `received ${found.length} messages`);
      if (step.bodies) check(isDeepStrictEqual(found.map(textOf), step.bodies), `bodies ${found.map(textOf)}`);
      const [first] = found;
      if (step.json !== undefined && first) check(isDeepStrictEqual(jsonOf(first), step.json), "another value");
      return first && { ...first };
    }
    case "ack":
      await group.ack(step.receipt);
      return undefined;
    case "extend":
      await group.extend(step.receipt, step.lasts_ms);
      return undefined;
    case "nack":
      await group.nack(step.receipt, step.reason, step.delay_ms);
      return undefined;
    case "put_group": {
      const backoff = { type: "exponential", initial_ms: step.backoff_ms, max_ms: step.backoff_ms } as const;
      const params = { path: { topic: step.topic, group: step.group } };
      const call = await timerwheel.http.PUT("/v1/topics/{topic}/groups/{group}", { params, body: { backoff } });
      check(call.response.ok, "the group was not made");
      return undefined;
    }
    case "consume":
      await consume(step);
      return undefined;
    default:
      throw new Error(`no such step: ${step.do}`);
  }
}

async function consume(step: Step): Promise<void> {
  const handled: Record<string, number> = {};
  const working = new AbortController();
  const late = setTimeout(() => working.abort(), 60_000);
  let total = 0;
  const handle = (found: Held): void => {
    const body = textOf(found);
    handled[body] = (handled[body] ?? 0) + 1;
    if (++total === step.until) working.abort();
    if (body === step.fail_once && handled[body] === 1) throw new Error(step.fail_with ?? "not at first");
  };
  const { concurrency } = step;
  try {
    await timerwheel.group(step.topic, step.group).consume(handle, { concurrency, signal: working.signal });
  } finally {
    clearTimeout(late);
  }
  check(isDeepStrictEqual(handled, step.handled), `handled ${JSON.stringify(handled)}`);
}

async function run(steps: Step[]): Promise<void> {
  const saved: Record<string, Fields> = {};
  const named = (value: unknown): unknown => {
    const found = typeof value === "string" ? /^\$(\w+)\.(\w+)$/.exec(value) : null;
    return found ? saved[found[1] ?? ""]?.[found[2] ?? ""] : value;
  };
  for (const [place, raw] of steps.entries()) {
    const step = { ...raw, id: named(raw.id) as string, receipt: named(raw.receipt) as string };
    let found: Fields | undefined;
    try {
      found = await act(step);
    } catch (error) {
      if (error instanceof TimerwheelError && error.code === step.error) continue;
      throw new Error(`step ${place}: ${String(error)}`);
    }
    check(step.error === undefined, `step ${place}: expected ${step.error}`);
    if (step.save && found) saved[step.save] = found;
    for (const [name, wanted] of Object.entries(step.expect ?? {})) {
      check(isDeepStrictEqual(found?.[name], named(wanted)), `step ${place}: ${name} is ${String(found?.[name])}`);
    }
  }
}

for (const { name, steps } of scenarios) {
  try {
    await run(steps);
    console.log(`ok: ${name}`);
  } catch (error) {
    console.log(`failed: ${name}: ${error instanceof Error ? error.message : String(error)}`);
    process.exitCode = 1;
  }
}
