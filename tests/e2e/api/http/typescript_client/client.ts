// Uses a client whose types openapi-typescript generated; `tests/e2e/api/http/test_generated_clients.py` compiles and runs it.
import createClient from "openapi-fetch";
import type { components, paths } from "./timerwheel.js";

declare const process: { env: Record<string, string | undefined> };

type Message = components["schemas"]["Message"];

const client = createClient<paths>({ baseUrl: process.env["TIMERWHEEL_URL"] ?? "" });

function check(holds: boolean, what: string): void {
  if (!holds) throw new Error(what);
}

const sent = await client.POST("/v1/messages", { body: { topic: "orders", body: "close order 17", delay: "1h" } });
if (!sent.data || Array.isArray(sent.data)) throw new Error(`not sent: ${JSON.stringify(sent.error)}`);
check(sent.data.state === "scheduled", "the message waits");
const id = sent.data.id;

const many = await client.POST("/v1/messages", { body: [{ topic: "orders", body: "a" }, { topic: "orders", body: "b" }] });
check(Array.isArray(many.data) && many.data.length === 2, "an array is answered with an array");

const refused = await client.POST("/v1/messages", { body: { topic: "no topic" } });
check(refused.error?.code === "illegal_topic", "a problem has its code");

const got = await client.GET("/v1/messages/{id}", { params: { path: { id } } });
const message: Message | undefined = got.data;
check(message?.body === "close order 17", "the message is got");

const listed = await client.GET("/v1/messages", { params: { query: { topic: "orders", limit: 10 } } });
check(listed.data?.messages[0]?.id === id, "the message is listed");

const recalled = await client.DELETE("/v1/messages/{id}", { params: { path: { id } } });
check(recalled.data?.state === "recalled", "the message is recalled");

const path = { topic: "orders", group: "workers" };
const made = await client.PUT("/v1/topics/{topic}/groups/{group}", { params: { path }, body: { max_attempts: 3 } });
check(made.response.status === 201 && made.data?.config.max_attempts === 3, "the group is made");

const found = await client.POST("/v1/topics/{topic}/groups/{group}/receive", { params: { path }, body: { max: 10 } });
check(found.data?.messages.map((held) => held.body).join() === "a,b", "messages are received");

const receipts = found.data?.messages.map((held) => held.receipt) ?? [];
const done = await client.POST("/v1/topics/{topic}/groups/{group}/ack", { params: { path }, body: { receipts } });
check(done.data?.results.every((result) => result.ok) === true, "messages are acknowledged");

console.log("sent, got, listed, recalled, received, acknowledged");
