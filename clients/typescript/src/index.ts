/**
 * A client of a timerwheel service.
 *
 * `schema.ts` has the types of every call of the HTTP API, generated from the service's OpenAPI document;
 * `Timerwheel.http` makes any of them. This file adds what a program wants besides: sends that are stored once
 * although an answer was lost, errors with their code, and workers of a consumer group.
 *
 *     const timerwheel = new Timerwheel({ url: "http://127.0.0.1:8686" });
 *     await timerwheel.send({ topic: "orders", body: "close order 17", delay: "30m" });
 */
import createClient, { type Client } from "openapi-fetch";
import type { components, paths } from "./schema.js";

export type { components, paths } from "./schema.js";
type Schemas = components["schemas"];
export type NewMessage = Schemas["NewMessage"];
export type Accepted = Schemas["Accepted"];
export type Message = Schemas["Message"];
export type Held = Schemas["Held"];
export type Problem = Schemas["Problem"];

/** How often `send` and `sendMany` try a send that got no answer, or was told to come back later. */
export const SEND_TRIES = 6;
const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5_000;
/** How long a send waits at most for the time that the service names; for a later one it fails. */
const LONGEST_WAIT_MS = 15_000;
const TIMEOUT_MS = 30_000;
const RECEIVE_MAX = 1_000;
const LEASE_MS = 30_000;
const WAIT_MS = 20_000;
const REASON_CHARACTERS_MAX = 500;
/** How long a worker that stops waits in all for a limited rate to settle a message. */
const SETTLE_MS_MAX = 10_000;
/** The longest time that a timer can have; one with more ends at once. */
const TIMER_MS_MAX = 2 ** 31 - 1;

/** A refusal by the service. Match on `code`, which does not change. */
export class TimerwheelError extends Error {
  constructor(
    readonly problem: Problem,
    /** How long the service asks to wait before another try; undefined if it does not say. */
    readonly retryAfterMs?: number,
  ) {
    super(`${problem.code}: ${problem.detail}`);
    this.name = "TimerwheelError";
  }

  get code(): Problem["code"] {
    return this.problem.code;
  }

  get status(): number {
    return this.problem.status;
  }
}

/** What came in place of an answer of the service, such as the page of a proxy. */
export class AnswerError extends Error {
  constructor(readonly status: number) {
    super(`HTTP ${status} without a problem`);
    this.name = "AnswerError";
  }
}

export interface Options {
  /** The service's address; `http://127.0.0.1:8686` by default. */
  url?: string;
  /** A token, for a service that demands one. */
  token?: string;
  /** How long a call may take, besides what `receive` waits; 30 s by default. Not for calls of `http`. */
  timeoutMs?: number;
  /** Instead of the global `fetch`. */
  fetch?: (request: Request) => Promise<Response>;
}

/** A service. */
export class Timerwheel {
  /** Every call as it is. */
  readonly http: Client<paths>;
  readonly #timeoutMs: number;

  constructor(options: Options = {}) {
    this.#timeoutMs = options.timeoutMs ?? TIMEOUT_MS;
    this.http = createClient<paths>({
      baseUrl: options.url ?? "http://127.0.0.1:8686",
      ...(options.token === undefined ? {} : { headers: { authorization: `Bearer ${options.token}` } }),
      ...(options.fetch === undefined ? {} : { fetch: options.fetch }),
    });
  }

  /**
   * Stores a message. If no answer comes, it sends again under the same deduplication key, so the message is
   * stored once; a message without a key gets a random one for that. One with `on_duplicate` or `after_recall`
   * gets none. What replaces, or has no key, is sent again only if it was certainly not stored.
   */
  async send(message: NewMessage): Promise<Accepted> {
    const found = await this.#send([keyed(message)], true);
    if (Array.isArray(found)) throw new Error("one message was answered with an array");
    return found;
  }

  /** Stores messages as one unit: all or none. It tries again as `send` does. */
  async sendMany(messages: readonly NewMessage[]): Promise<Accepted[]> {
    const found = await this.#send(messages.map(keyed), false);
    return Array.isArray(found) ? found : [found];
  }

  #send(messages: NewMessage[], single: boolean): Promise<Accepted | Accepted[]> {
    const [first] = messages;
    const body = single && first ? first : messages;
    const mayRepeat = messages.every(isStoredOnce) ? mayPass : wasNotStored;
    // A part of an array is stored only for a call that asks for that, which this one does not.
    const send = async (): Promise<Accepted | Accepted[]> =>
      answer(await this.http.POST("/v1/messages", { body, signal: this.limit() })) as Accepted | Accepted[];
    return retried(send, mayRepeat);
  }

  /** Returns the signal that ends a call which takes too long, or is not wanted any more. */
  limit(waitMs = 0, signal?: AbortSignal): AbortSignal {
    const late = AbortSignal.timeout(this.#timeoutMs + waitMs);
    return signal === undefined ? late : AbortSignal.any([late, signal]);
  }

  /** Returns a message and its state. */
  async get(id: string): Promise<Message> {
    return answer(await this.http.GET("/v1/messages/{id}", { params: { path: { id } }, signal: this.limit() }));
  }

  /** Ends a scheduled message: it will not be delivered. */
  async recall(id: string): Promise<Message> {
    return answer(await this.http.DELETE("/v1/messages/{id}", { params: { path: { id } }, signal: this.limit() }));
  }

  /** Changes the due time of a scheduled message, counted from now (`"2h"`); the id stays. */
  async reschedule(id: string, delay: string): Promise<Accepted> {
    const call = { params: { path: { id } }, body: { delay }, signal: this.limit() };
    return answer(await this.http.PATCH("/v1/messages/{id}", call));
  }

  /** Returns a consumer group of a topic. It calls nothing. */
  group(topic: string, group: string): Group {
    return new Group(this, topic, group);
  }
}

export interface ConsumeOptions {
  /** How many messages are handled at a time; 1 by default. */
  concurrency?: number;
  /** Ends the loop: handlers that run are waited for. */
  signal?: AbortSignal;
}

/** A consumer group of a topic. */
export class Group {
  readonly #path: { topic: string; group: string };

  constructor(
    readonly service: Timerwheel,
    topic: string,
    group: string,
  ) {
    this.#path = { topic, group };
  }

  /**
   * Leases up to `max` messages. It waits up to `waitMs` for the first one. The leases last `lastsMs`, by default as
   * long as the group says.
   */
  async receive(max = 1, waitMs = 0, signal?: AbortSignal, lastsMs?: number): Promise<Held[]> {
    const lasts = lastsMs === undefined ? {} : { invisible_ms: lastsMs };
    const found = answer(
      await this.service.http.POST("/v1/topics/{topic}/groups/{group}/receive", {
        params: { path: this.#path },
        body: { max, wait_ms: waitMs, create: true, ...lasts },
        signal: this.service.limit(waitMs, signal),
      }),
    );
    return found.messages;
  }

  /** Acknowledges messages by their receipts: the group never gets them again. */
  async ack(...receipts: string[]): Promise<void> {
    const call = { params: { path: this.#path }, body: { receipts }, signal: this.service.limit() };
    check(answer(await this.service.http.POST("/v1/topics/{topic}/groups/{group}/ack", call)));
  }

  /**
   * Gives a message back: it is delivered again after a delay, or without one after that of its attempt. The
   * reason is kept.
   */
  async nack(receipt: string, reason: string, delayMs?: number): Promise<void> {
    const delay = delayMs === undefined ? {} : { delay_ms: delayMs };
    const body = { receipts: [receipt], reason: shown(reason), ...delay };
    const call = { params: { path: this.#path }, body, signal: this.service.limit() };
    check(answer(await this.service.http.POST("/v1/topics/{topic}/groups/{group}/nack", call)));
  }

  /** Makes a lease last `lastsMs` from now. */
  async extend(receipt: string, lastsMs: number): Promise<void> {
    const body = { receipts: [receipt], invisible_ms: lastsMs };
    const call = { params: { path: this.#path }, body, signal: this.service.limit() };
    check(answer(await this.service.http.POST("/v1/topics/{topic}/groups/{group}/extend", call)));
  }

  /**
   * Runs a handler on each message of the group until `signal` aborts. It extends leases while handlers work,
   * acknowledges what they finished, and gives back what they failed: that is delivered again later. A limited rate
   * makes it wait as long as the service says, but to settle a message only until its lease has ended, and 10 s at most
   * once `signal` has aborted.
   */
  async consume(handle: (message: Held) => Promise<void> | void, options: ConsumeOptions = {}): Promise<void> {
    const { concurrency = 1, signal } = options;
    if (!(concurrency >= 1)) throw new RangeError(`concurrency = ${concurrency}: must be at least 1`);
    const running = new Set<Promise<void>>();
    const ended = new AbortController();
    const stopping = signal === undefined ? ended.signal : AbortSignal.any([ended.signal, signal]);
    const free = (): number => Math.min(concurrency - running.size, RECEIVE_MAX);
    let pauseMs = FIRST_PAUSE_MS;
    try {
      while (!signal?.aborted) {
        try {
          for (const message of await this.receive(free(), WAIT_MS, signal, LEASE_MS)) {
            const lease = new Lease(message.receipt, stopping);
            const work = this.#work(message, lease, handle).finally(() => running.delete(work));
            running.add(work);
          }
          pauseMs = FIRST_PAUSE_MS;
        } catch (error) {
          if (signal?.aborted) break;
          if (!mayPass(error)) throw error;
          await pause(Math.max(pauseMs, askedMs(error)), signal); // the service starts again, or the rate is limited
          pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
        }
        while (running.size >= concurrency) await Promise.race(running);
      }
    } finally {
      ended.abort();
      await Promise.allSettled(running);
    }
  }

  async #work(message: Held, lease: Lease, handle: (message: Held) => Promise<void> | void): Promise<void> {
    const settled = new AbortController();
    void this.#extend(lease, settled.signal);
    let failure: unknown;
    try {
      await handle(message);
    } catch (error) {
      failure = error ?? new Error("the handler failed");
    }
    // An outage here costs a repeated delivery, which every worker of a group has to bear.
    if (failure === undefined) {
      await lease.patiently(() => retried(() => this.ack(lease.receipt), mayPassUnlimited)).catch(() => undefined);
    } else {
      await lease.patiently(() => this.nack(lease.receipt, String(failure))).catch(() => undefined);
    }
    settled.abort();
  }

  /** Extends a lease until a signal; if that fails for too long, the message is delivered again. */
  async #extend(lease: Lease, settled: AbortSignal): Promise<void> {
    let pauseMs = LEASE_MS / 3;
    while (!settled.aborted) {
      await pause(pauseMs, settled);
      if (settled.aborted) return;
      pauseMs = LEASE_MS / 3;
      const begun = performance.now();
      try {
        await this.extend(lease.receipt, LEASE_MS);
        lease.ends = begun + LEASE_MS;
      } catch (error) {
        if (isLimited(error)) pauseMs = Math.min(pauseMs, Math.max(askedMs(error), FIRST_PAUSE_MS));
        if (error instanceof TimerwheelError && (error.code as string) === "receipt_ended") {
          lease.ends = begun;
          return;
        }
      }
    }
  }
}

/** The lease that a worker has on a message. */
class Lease {
  /** When it ends unless it is extended, by `performance.now()`. */
  ends = performance.now() + LEASE_MS;
  #budgetMs = SETTLE_MS_MAX;

  constructor(
    readonly receipt: string,
    /** Aborts once the worker stops. */
    readonly stopping: AbortSignal,
  ) {}

  /**
   * Calls as soon as a limited rate allows. It gives up when the lease has ended, and once the worker stops, as soon as
   * it would have to wait for more than `SETTLE_MS_MAX` in all.
   */
  async patiently<T>(call: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        return await call();
      } catch (error) {
        if (!isLimited(error) || !(await this.#waited(Math.max(askedMs(error), FIRST_PAUSE_MS)))) throw error;
      }
    }
  }

  /** Whether the time has passed and it is worth to try again. A stop takes the rest of it from the budget. */
  async #waited(ms: number): Promise<boolean> {
    const until = performance.now() + ms;
    for (;;) {
      const now = performance.now();
      const restMs = until - now;
      if (restMs <= 0) return true;
      if (this.ends <= now || (this.stopping.aborted && restMs > this.#budgetMs)) return false;
      const stepMs = Math.min(restMs, this.ends - now); // the lease may be extended by then
      if (this.stopping.aborted) {
        this.#budgetMs -= stepMs;
        await pause(stepMs);
      } else {
        await pause(stepMs, this.stopping);
      }
    }
  }
}

/** Returns the body of a message as bytes. */
export function bytesOf(message: Message | Held): Uint8Array {
  if (message.body_base64 === undefined) return new TextEncoder().encode(message.body ?? "");
  return Uint8Array.from(atob(message.body_base64), (one) => one.charCodeAt(0));
}

/** Returns the body of a message as JSON. */
export function jsonOf<T>(message: Message | Held): T {
  return JSON.parse(new TextDecoder().decode(bytesOf(message))) as T;
}

function keyed(message: NewMessage): NewMessage {
  const chosen = message.on_duplicate !== undefined || message.after_recall !== undefined;
  return chosen || hasKey(message) ? message : { ...message, dedup_key: crypto.randomUUID() };
}

function hasKey(message: NewMessage): boolean {
  return message.dedup_key !== undefined || message.properties?.["DEDUP_KEY"] !== undefined;
}

/** Whether the service stores a message once, however often it is sent. */
function isStoredOnce(message: NewMessage): boolean {
  return hasKey(message) && message.on_duplicate !== "replace";
}

/** Returns a reason as the service takes it: of its length, and without halves of surrogate pairs. */
function shown(reason: string): string {
  const characters = Array.from(reason.slice(0, 2 * REASON_CHARACTERS_MAX)).slice(0, REASON_CHARACTERS_MAX);
  return characters.join("").replace(/\p{Surrogate}/gu, "\uFFFD");
}

function answer<T>(found: { data?: T | undefined; error?: unknown; response: Response }): T {
  if (found.data !== undefined) return found.data;
  const problem = found.error as Problem | undefined;
  if (problem?.code === undefined) throw new AnswerError(found.response.status);
  const seconds = Number(found.response.headers.get("retry-after") ?? Number.NaN);
  throw new TimerwheelError(problem, Number.isFinite(seconds) ? seconds * 1_000 : undefined);
}

function check(settled: Schemas["SettledAll"]): void {
  for (const one of settled.results) {
    if (one.ok || !one.code) continue;
    const detail = `receipt ${one.receipt}`;
    const code = one.code as Problem["code"];
    throw new TimerwheelError({ type: "", title: "", status: 409, code, detail });
  }
}

/** Calls until there is an answer, or tries are used up. What another try may not repeat, or not change, is thrown. */
async function retried<T>(call: () => Promise<T>, mayRepeat: (error: unknown) => boolean): Promise<T> {
  let pauseMs = FIRST_PAUSE_MS;
  for (let tries = 1; ; tries++) {
    try {
      return await call();
    } catch (error) {
      const asked = askedMs(error);
      if (tries === SEND_TRIES || asked > LONGEST_WAIT_MS || !mayRepeat(error)) throw error;
      await pause(Math.max(asked, pauseMs * (0.5 + Math.random())));
      pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
    }
  }
}

/** Whether the same call may succeed later. */
function mayPass(error: unknown): boolean {
  return isLimited(error) || mayPassUnlimited(error);
}

function mayPassUnlimited(error: unknown): boolean {
  if (error instanceof TimerwheelError) return error.status === 503 || error.code === "outcome_unknown";
  if (error instanceof AnswerError) return [502, 503, 504].includes(error.status); // of a proxy without an answer
  if ((error as { name?: string }).name === "TimeoutError") return true;
  return error instanceof TypeError && !FINAL.test(causeOf(error)); // fetch got no answer
}

/** Whether a send was certainly not stored, and may be stored later. */
function wasNotStored(error: unknown): boolean {
  if (error instanceof TimerwheelError) return [429, 503].includes(error.status) && error.retryAfterMs !== undefined;
  return error instanceof TypeError && UNSENT.test(causeOf(error));
}

/** Whether the token made too many calls: this one had no effect. */
function isLimited(error: unknown): boolean {
  return error instanceof TimerwheelError && error.status === 429 && error.retryAfterMs !== undefined;
}

function askedMs(error: unknown): number {
  return error instanceof TimerwheelError ? (error.retryAfterMs ?? 0) : 0;
}

/** What Node says of calls that fail each time: a certificate that is not trusted, an address that is none. */
const FINAL = /CERT|UNABLE_TO_|^ERR_INVALID|^ERR_TLS/;
const UNSENT = /^(ECONNREFUSED|ENOTFOUND|EAI_AGAIN|UND_ERR_CONNECT_TIMEOUT)$/;

/** Returns the code of what made `fetch` fail; empty in a browser, which does not say. */
function causeOf(error: TypeError): string {
  const { cause } = error as { cause?: { code?: unknown } };
  return typeof cause?.code === "string" ? cause.code : "";
}

function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, Math.min(ms, TIMER_MS_MAX));
    signal?.addEventListener("abort", done);
  });
}
