// RocketMQ's Node client, driven by lines of JSON: see tests/harness/grpc_clients.py.

const { createInterface } = require("node:readline");
const { Producer, SimpleConsumer, PushConsumer, ConsumeResult } = require("rocketmq-client-nodejs");

const [endpoints, accessKey, tls] = process.argv.slice(2);
const quiet = { info() {}, warn() {}, error() {}, debug() {}, close() {} };
const common = {
  endpoints,
  namespace: "",
  sslEnabled: tls === "tls",
  logger: quiet,
  ...(accessKey ? { sessionCredentials: { accessKey, accessSecret: "any" } } : {}),
};
let producer;
const consumers = new Map();
const views = new Map();
const listeners = new Map();

const shown = (message) => ({
  id: message.messageId,
  body: message.body.toString(),
  tag: message.tag ?? null,
  keys: [...message.keys].sort(),
  group: message.messageGroup ?? null,
  attempt: message.deliveryAttempt,
  properties: Object.fromEntries(message.properties),
  corrupted: message.corrupted === true,
});

const commands = {
  async send({ topic, body, tag, keys = [], group, delay_ms: delay, properties = {} }) {
    if (!producer) {
      producer = new Producer({ ...common, topic, maxAttempts: 3 });
      await producer.startup();
    }
    const message = { topic, body: Buffer.from(body), keys, properties: new Map(Object.entries(properties)) };
    if (tag) message.tag = tag;
    if (group) message.messageGroup = group;
    if (delay) message.delay = delay;
    const receipt = await producer.send(message);
    return { id: receipt.messageId, handle: receipt.recallHandle ?? null };
  },

  async recall({ topic, handle }) {
    return { id: (await producer.recallMessage(topic, handle)).messageId };
  },

  async receive({ topic, group, tags = "*", count = 32, invisible_ms: invisible = 15000, wait_ms: wait = 5000 }) {
    const name = [topic, group, tags, wait].join(" ");
    if (!consumers.has(name)) {
      const subscriptions = new Map([[topic, tags]]);
      const made = new SimpleConsumer({ ...common, consumerGroup: group, subscriptions, awaitDuration: wait });
      await made.startup();
      consumers.set(name, made);
    }
    const consumer = consumers.get(name);
    const found = await consumer.receive(count, invisible);
    for (const one of found) views.set(one.messageId, [consumer, one]);
    return { messages: found.map(shown) };
  },

  async ack({ message_id: id }) {
    const [consumer, message] = views.get(id);
    await consumer.ack(message);
    return {};
  },

  async hide({ message_id: id, ms }) {
    const [consumer, message] = views.get(id);
    await consumer.changeInvisibleDuration(message, ms);
    return {};
  },

  async push({ topic, group, tags = "*", failures = 0 }) {
    const listener = { consumed: [], arrived: () => {} };
    listeners.set(topic, listener);
    const messageListener = {
      async consume(message) {
        listener.consumed.push(shown(message));
        listener.arrived();
        return listener.consumed.length <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    };
    const subscriptions = new Map([[topic, tags]]);
    await new PushConsumer({ ...common, consumerGroup: group, subscriptions, messageListener }).startup();
    return {};
  },

  async consumed({ topic, count }) {
    const listener = listeners.get(topic);
    while (listener.consumed.length < count) {
      await new Promise((resolve) => (listener.arrived = resolve));
    }
    return { messages: listener.consumed };
  },
};

(async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: name, ...given } = JSON.parse(line);
    let answer;
    try {
      answer = await commands[name](given);
    } catch (error) {
      answer = { error: Number(error.code) || 0, detail: `${error.name}: ${error.message}` };
    }
    process.stdout.write(`@${JSON.stringify(answer)}\n`);
  }
  process.exit(0);
})();
