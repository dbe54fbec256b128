// Closes orders that are not paid in time: `npm run build && npm run example` with a service on the default address.
import { Timerwheel, jsonOf } from "../src/index.js";

interface Order {
  number: number;
}

const url = process.env["TIMERWHEEL_URL"] ?? "http://127.0.0.1:8686";
const timerwheel = new Timerwheel({ url });

const paid = await timerwheel.send({ topic: "orders", json: { number: 17 } satisfies Order, delay: "1s" });
await timerwheel.send({ topic: "orders", json: { number: 18 } satisfies Order, delay: "1s" });
await timerwheel.recall(paid.id); // order 17 is paid

const working = new AbortController();
process.on("SIGINT", () => working.abort());
await timerwheel.group("orders", "closers").consume(
  (message) => {
    console.log(`closed order ${jsonOf<Order>(message).number}`);
    working.abort();
  },
  { concurrency: 4, signal: working.signal },
);
