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
const LEASE_MS = 30_000;
const WAIT_MS = 20_000;
const REASON_CHARACTERS_MAX = 500;

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

export interface Options {
  /** The service's address; `http://127.0.0.1:8686` by default. */
  url?: string;
  /** A token, for a service that demands one. */
  token?: string;
  /** Instead of the global `fetch`. */
  fetch?: (request: Request) => Promise<Response>;
}

/** A service. */
export class Timerwheel {
  /** Every call as it is. */
  readonly http: Client<paths>;

  constructor(options: Options = {}) {
    this.http = createClient<paths>({
      baseUrl: options.url ?? "http://127.0.0.1:8686",
      ...(options.token === undefined ? {} : { headers: { authorization: `Bearer ${options.token}` } }),
      ...(options.fetch === undefined ? {} : { fetch: options.fetch }),
    });
  }

  /**
   * Stores a message. If no answer comes, it sends again under the same deduplication key, so the message is
   * stored once; a message without a key gets a random one for that.
   */
  async send(message: NewMessage): Promise<Accepted> {
    const found = await this.#send(keyed(message));
    if (Array.isArray(found)) throw new Error("one message was answered with an array");
    return found;
  }

  /** Stores messages as one unit: all or none. It tries again as `send` does. */
  async sendMany(messages: readonly NewMessage[]): Promise<Accepted[]> {
    const found = await this.#send(messages.map(keyed));
    return Array.isArray(found) ? found : [found];
  }

  #send(body: NewMessage | NewMessage[]): Promise<Accepted | Accepted[]> {
    // A part of an array is stored only for a call that asks for that, which this one does not.
    return retried(async () => answer(await this.http.POST("/v1/messages", { body })) as Accepted | Accepted[]);
  }

  /** Returns a message and its state. */
  async get(id: string): Promise<Message> {
    return answer(await this.http.GET("/v1/messages/{id}", { params: { path: { id } } }));
  }

  /** Ends a scheduled message: it will not be delivered. */
  async recall(id: string): Promise<Message> {
    return answer(await this.http.DELETE("/v1/messages/{id}", { params: { path: { id } } }));
  }

  /** Changes the due time of a scheduled message, counted from now (`"2h"`); the id stays. */
  async reschedule(id: string, delay: string): Promise<Accepted> {
    return answer(await this.http.PATCH("/v1/messages/{id}", { params: { path: { id } }, body: { delay } }));
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

  /** Leases up to `max` messages. It waits up to `waitMs` for the first one. */
  async receive(max = 1, waitMs = 0, signal?: AbortSignal): Promise<Held[]> {
    const found = answer(
      await this.service.http.POST("/v1/topics/{topic}/groups/{group}/receive", {
        params: { path: this.#path },
        body: { max, wait_ms: waitMs, create: true },
        ...(signal === undefined ? {} : { signal }),
      }),
    );
    return found.messages;
  }

  /** Acknowledges messages by their receipts: the group never gets them again. */
  async ack(...receipts: string[]): Promise<void> {
    const call = { params: { path: this.#path }, body: { receipts } };
    check(answer(await this.service.http.POST("/v1/topics/{topic}/groups/{group}/ack", call)));
  }

  /**
   * Gives a message back: it is delivered again after a delay, or without one after that of its attempt. The
   * reason is kept.
   */
  async nack(receipt: string, reason: string, delayMs?: number): Promise<void> {
    const delay = delayMs === undefined ? {} : { delay_ms: delayMs };
    const body = { receipts: [receipt], reason: reason.slice(0, REASON_CHARACTERS_MAX), ...delay };
    const call = { params: { path: this.#path }, body };
    check(answer(await this.service.http.POST("/v1/topics/{topic}/groups/{group}/nack", call)));
  }

  /** Makes a lease last `lastsMs` from now. */
  async extend(receipt: string, lastsMs: number): Promise<void> {
    const call = { params: { path: this.#path }, body: { receipts: [receipt], invisible_ms: lastsMs } };
    check(answer(await this.service.http.POST("/v1/topics/{topic}/groups/{group}/extend", call)));
  }

  /**
   * Runs a handler on each message of the group until `signal` aborts. It extends leases while handlers work,
   * acknowledges what they finished, and gives back what they failed: that is delivered again later.
   */
  async consume(handle: (message: Held) => Promise<void> | void, options: ConsumeOptions = {}): Promise<void> {
    const { concurrency = 1, signal } = options;
    const running = new Set<Promise<void>>();
    let pauseMs = FIRST_PAUSE_MS;
    while (!signal?.aborted) {
      try {
        for (const message of await this.receive(concurrency - running.size, WAIT_MS, signal)) {
          const work = this.#work(message, handle).finally(() => running.delete(work));
          running.add(work);
        }
        pauseMs = FIRST_PAUSE_MS;
      } catch (error) {
        if (signal?.aborted) break;
        if (!mayPass(error)) {
          await Promise.allSettled(running);
          throw error;
        }
        await pause(pauseMs, signal); // the service starts again
        pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
      }
      while (running.size >= concurrency) await Promise.race(running);
    }
    await Promise.allSettled(running);
  }

  async #work(message: Held, handle: (message: Held) => Promise<void> | void): Promise<void> {
    const extending = setInterval(() => {
      this.extend(message.receipt, LEASE_MS).catch(() => undefined); // it is delivered again then
    }, LEASE_MS / 3);
    let failure: unknown;
    try {
      await handle(message);
    } catch (error) {
      failure = error ?? new Error("the handler failed");
    } finally {
      clearInterval(extending);
    }
    // An outage here costs a repeated delivery, which every worker of a group has to bear.
    if (failure === undefined) await retried(() => this.ack(message.receipt)).catch(() => undefined);
    else await this.nack(message.receipt, String(failure)).catch(() => undefined);
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
  return message.dedup_key === undefined ? { ...message, dedup_key: crypto.randomUUID() } : message;
}

function answer<T>(found: { data?: T | undefined; error?: unknown; response: Response }): T {
  if (found.data !== undefined) return found.data;
  const problem = found.error as Problem | undefined;
  if (problem?.code === undefined) throw new Error(`HTTP ${found.response.status} without a problem`);
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

/** Calls until there is an answer, or tries are used up. What another try cannot change is thrown at once. */
async function retried<T>(call: () => Promise<T>): Promise<T> {
  let pauseMs = FIRST_PAUSE_MS;
  for (let tries = 1; ; tries++) {
    try {
      return await call();
    } catch (error) {
      if (tries === SEND_TRIES || !mayPass(error)) throw error;
      const asked = error instanceof TimerwheelError ? (error.retryAfterMs ?? 0) : 0;
      await pause(Math.max(Math.min(asked, LONGEST_PAUSE_MS), pauseMs * (0.5 + Math.random())));
      pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
    }
  }
}

function mayPass(error: unknown): boolean {
  if (!(error instanceof TimerwheelError)) return error instanceof TypeError; // fetch got no answer
  return error.status === 503 || error.code === "outcome_unknown";
}

function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", done);
  });
}
