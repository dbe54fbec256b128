// Calls to the service, with the token if there is one. Errors carry the service's own words.

import { ofTab } from "./storage.js";

const TOKEN = "timerwheel-token";
const NO_ANSWER = "No response: the service is stopped, is restarting, or cannot be reached from here.";
const ASKED = "The service asks for a token.";
const TRIES_MAX = 6;
const RETRY_S_MAX = 10;

/** A problem that the service reported, or the failure to reach it. */
class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `status ${status}`);
    this.status = status;
    this.code = problem.code ?? "unreachable";
    this.title = problem.title ?? "The service cannot be reached";
    this.faults = problem.errors ?? [];
  }
}

let askForToken = async () => null;
let asking = null;
let declined = false; // the reader declined to give a token; the page does not ask again

/** Called when a token is needed: takes the service's words, returns a token or null. */
export function onTokenNeeded(ask) {
  askForToken = ask;
}

export const token = () => ofTab.getItem(TOKEN);

/** What is wrong with a text as a token, empty if nothing: a browser sends only some characters in a header. */
export function tokenFault(text) {
  const [strange] = text.match(/[^0-9A-Za-z_]/u) ?? [];
  if (strange === undefined) return "";
  const seen = /[\p{L}\p{N}\p{P}\p{S}]/u.test(strange) ? `“${strange}”` : strange === " " ? "a space" : codePoint(strange);
  return `A token has only the letters A to Z and a to z, digits and “_”. This one contains ${seen}.`;
}

/** An invisible character as its code point: U+200B */
const codePoint = (text) => `U+${text.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** Keep a token while the tab is open; an empty one removes it. */
export function keepToken(text) {
  declined = false;
  if (text) ofTab.setItem(TOKEN, text);
  else ofTab.removeItem(TOKEN);
}

/** Gives a call up if nothing of an answer is heard for a while: what is connected may be gone without a sign. */
export class Watch {
  #control = new AbortController();
  #timer = 0;

  constructor(silenceMs) {
    this.silenceMs = silenceMs;
  }

  get signal() {
    return this.#control.signal;
  }

  /** Begin the wait for what comes next. */
  heard() {
    this.rest();
    this.#timer = setTimeout(() => this.#control.abort(), this.silenceMs);
  }

  /** Nothing is waited for. */
  rest() {
    clearTimeout(this.#timer);
  }

  /** Give up now. */
  end() {
    this.rest();
    this.#control.abort();
  }
}

/**
 * Return the JSON of the answer; throws ApiError. `more` are further headers, such as a condition. With a watch, the call
 * is given up after its time.
 */
export async function call(method, path, body, more = {}, watch = null) {
  const headers = { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...more };
  try {
    const response = await request(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) }, watch);
    return await response.json();
  } catch (error) {
    throw error instanceof ApiError ? error : new ApiError(0, { detail: NO_ANSWER }); // it broke off in the middle, or was given up
  } finally {
    watch?.rest();
  }
}

/** Return what is at a path, and its tag; throws ApiError. */
export async function seen(path) {
  const response = await request(path, { method: "GET", headers: {} });
  return [await response.json(), response.headers.get("ETag")];
}

/** The condition that nobody has changed a thing since it had this tag. */
export const ifSame = (tag) => (tag ? { "If-Match": tag } : {});

/** The condition that a thing does not exist. */
export const IF_NEW = { "If-None-Match": "*" };

/** Return the answer of a GET as a stream of text; throws ApiError. EventSource cannot send a token. */
export async function stream(path, watch) {
  const response = await request(path, { method: "GET", headers: { Accept: "text/event-stream" } }, watch);
  return response.body.pipeThrough(new TextDecoderStream()).getReader();
}

/** A path whose names are percent-encoded: path`/v1/topics/${topic}` */
export function path(parts, ...names) {
  return parts.reduce((text, part, index) => text + encodeURIComponent(names[index - 1]) + part);
}

/** A query string of the values that are set. */
export function query(given) {
  const pairs = Object.entries(given).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return pairs.length ? `?${pairs.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}` : "";
}

/** Wait as long as an answer says, and a little longer by chance: other calls wait for the same. */
function later(response) {
  const seconds = Math.min(Number(response.headers.get("Retry-After")) || 0, RETRY_S_MAX);
  return new Promise((end) => setTimeout(end, 1000 * seconds * (1 + Math.random())));
}

async function request(where, options, watch = null) {
  for (let tries = 1; ; tries += 1) {
    const sent = token();
    watch?.heard();
    const response = await answer(where, { ...options, signal: watch?.signal }, sent);
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (response.status === 429 && options.method === "GET" && tries < TRIES_MAX) {
      watch?.rest();
      await later(response); // the token has a rate, and the page asks for many things at first
      continue;
    }
    if (response.status !== 401) throw new ApiError(response.status, problem);
    if (sent !== token()) continue; // the token has changed since
    watch?.rest(); // the reader may take long
    // Several calls may fail at once; the page asks the reader once.
    asking ??= ask(sent ? problem.detail : ASKED).finally(() => (asking = null));
    if (!(await asking)) throw new ApiError(401, { ...problem, detail: `${ASKED} Press Token to enter one.` });
  }
}

/** True if a token was given. */
async function ask(detail) {
  if (declined) return false;
  const given = await askForToken(detail);
  if (given) keepToken(given);
  else declined = true;
  return Boolean(given);
}

async function answer(where, options, sent) {
  const headers = { ...options.headers, ...(sent ? { Authorization: `Bearer ${sent}` } : {}) };
  try {
    return await fetch(where, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { detail: NO_ANSWER });
  }
}

async function problemOf(response) {
  try {
    return await response.json();
  } catch {
    return { title: response.statusText, detail: `the response is not JSON, status ${response.status}` };
  }
}
