package scenarios;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Runs scenarios with RocketMQ's own client and prints one JSON object a line: name, ok, and what went wrong.
 * Arguments: address of the name server, a token or "-", then names of scenarios; none for all.
 */
public final class Scenarios {
    private static final long WAIT_S = 30;

    private final String address;
    private final String token;
    private final String run = Long.toString(System.nanoTime(), 36);

    private Scenarios(String address, String token) {
        this.address = address;
        this.token = token;
    }

    private interface Scenario {
        void run() throws Exception;
    }

    public static void main(String[] args) {
        Scenarios all = new Scenarios(args[0], args[1]);
        Map<String, Scenario> table = all.table();
        Collection<String> names = args.length > 2 ? List.of(args).subList(2, args.length) : table.keySet();
        boolean ok = true;
        for (String name : names) {
            ok &= report(name, table.get(name));
        }
        System.exit(ok ? 0 : 1);
    }

    private static boolean report(String name, Scenario scenario) {
        long begin = System.nanoTime();
        String problem = "";
        try {
            scenario.run();
        } catch (Throwable error) {
            problem = error.toString();
            error.printStackTrace();
        }
        long took = (System.nanoTime() - begin) / 1_000_000;
        String text = problem.replace("\\", "\\\\").replace("\"", "'").replaceAll("\\s+", " ");
        System.out.printf(
                "{\"scenario\":\"%s\",\"ok\":%b,\"ms\":%d,\"problem\":\"%s\"}%n", name, problem.isEmpty(), took, text);
        return problem.isEmpty();
    }

    private Map<String, Scenario> table() {
        Map<String, Scenario> table = new LinkedHashMap<>();
        table.put("send", this::send);
        table.put("delays", this::delays);
        table.put("batch", this::batch);
        table.put("recall", this::recall);
        table.put("trace", this::trace);
        table.put("consume", this::consume);
        table.put("delivered", this::delivered);
        table.put("tags", this::tags);
        table.put("orderly", this::orderly);
        table.put("broadcast", this::broadcast);
        table.put("litepull", this::litePull);
        table.put("retry", this::retry);
        table.put("rebalance", this::rebalance);
        table.put("pop", this::pop);
        table.put("pop-retry", this::popRetry);
        table.put("pop-share", this::popShare);
        table.put("pop-restart", () -> restart(true));
        table.put("restart", () -> restart(false));
        table.put("transaction", this::transaction);
        table.put("transaction-restart", this::transactionRestart);
        table.put("transaction-left", this::transactionLeft);
        table.put("transaction-taken", this::transactionTaken);
        return table;
    }

    // ---------------------------------------------------------------- producers

    private void send() throws Exception {
        String topic = "send-" + run;
        DefaultMQProducer producer = producer("senders");
        try {
            SendResult one = producer.send(message(topic, "one"));
            same(SendStatus.SEND_OK, one.getSendStatus(), "status");
            same(4, producer.fetchPublishMessageQueues(topic).size(), "queues of a new topic");
            check(one.getOffsetMsgId().length() == 32, "offset id " + one.getOffsetMsgId());
            MessageExt seen = producer.viewMessage(topic, one.getOffsetMsgId());
            same("one", body(seen), "message by its offset id");
            CountDownLatch answered = new CountDownLatch(100);
            AtomicInteger failed = new AtomicInteger();
            for (int n = 0; n < 100; n++) {
                producer.send(message(topic, "async " + n), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        answered.countDown();
                    }

                    @Override
                    public void onException(Throwable error) {
                        failed.incrementAndGet();
                        answered.countDown();
                    }
                });
            }
            check(answered.await(WAIT_S, TimeUnit.SECONDS), "100 sends without waiting were not answered");
            same(0, failed.get(), "failed sends");
            producer.sendOneway(message(topic, "one way"));
            Message large = message(topic, "x".repeat(20_000));
            same(SendStatus.SEND_OK, producer.send(large).getSendStatus(), "status of a compressed message");
            MessageQueue chosen = new MessageQueue(topic, one.getMessageQueue().getBrokerName(), 2);
            SendResult first = producer.send(message(topic, "to queue 2"), chosen);
            SendResult second = producer.send(message(topic, "to queue 2 again"), chosen);
            same(2, second.getMessageQueue().getQueueId(), "queue");
            same(first.getQueueOffset() + 1, second.getQueueOffset(), "queue offset");
            Message again = message(topic, "the same object twice");
            String id = producer.send(again, chosen).getOffsetMsgId();
            check(!id.equals(producer.send(again, chosen).getOffsetMsgId()), "a second send was taken for a repeat");
        } finally {
            producer.shutdown();
        }
    }

    private void delays() throws Exception {
        String topic = "delays-" + run;
        Map<String, String> ways = new LinkedHashMap<>();
        ways.put("DELAY", "1");
        ways.put("TIMER_DELAY_SEC", "1");
        ways.put("TIMER_DELAY_MS", "1200");
        ways.put("TIMER_DELIVER_MS", "");
        DefaultMQProducer producer = producer("delayers");
        Received received = new Received();
        DefaultMQPushConsumer consumer = consumer("delayed-" + run, topic, "*", received);
        try {
            for (Map.Entry<String, String> way : ways.entrySet()) {
                Message message = message(topic, way.getKey());
                String due = Long.toString(System.currentTimeMillis() + 1000);
                MessageAccessor.putProperty(message, way.getKey(), way.getValue().isEmpty() ? due : way.getValue());
                message.putUserProperty("due", due);
                same(SendStatus.SEND_OK, producer.send(message).getSendStatus(), way.getKey());
            }
            for (int n = 0; n < ways.size(); n++) {
                MessageExt message = received.next();
                long early = Long.parseLong(message.getUserProperty("due")) - System.currentTimeMillis();
                check(early <= 0, body(message) + " came " + early + " ms early");
                if (body(message).equals("DELAY")) {
                    same(1, message.getDelayTimeLevel(), "delay level of what was received");
                }
            }
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    private void batch() throws Exception {
        String topic = "batch-" + run;
        DefaultMQProducer producer = producer("batchers");
        try {
            producer.send(message(topic, "first"));
            List<Message> batch = new ArrayList<>();
            for (int n = 0; n < 50; n++) {
                batch.add(message(topic, "batched " + n));
            }
            SendResult result = producer.send(batch);
            same(SendStatus.SEND_OK, result.getSendStatus(), "status");
            same(50, result.getMsgId().split(",").length, "ids");
            same(50, result.getOffsetMsgId().split(",").length, "offset ids");
        } finally {
            producer.shutdown();
        }
    }

    private void recall() throws Exception {
        String topic = "recall-" + run;
        DefaultMQProducer producer = producer("recallers");
        try {
            Message message = message(topic, "never");
            MessageAccessor.putProperty(message, "TIMER_DELAY_MS", "600000");
            SendResult result = producer.send(message);
            String handle;
            try {
                handle = (String) SendResult.class.getMethod("getRecallHandle").invoke(result);
            } catch (NoSuchMethodException error) {
                return; // clients before 5.3.2 have no recall
            }
            check(handle != null, "no recall handle");
            java.lang.reflect.Method recall =
                    DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
            same(result.getMsgId(), recall.invoke(producer, topic, handle), "id of the recalled message");
            try {
                recall.invoke(producer, topic, handle);
                throw new AssertionError("a second recall succeeded");
            } catch (java.lang.reflect.InvocationTargetException error) {
                same(604, ((MQBrokerException) error.getCause()).getResponseCode(), "code of a second recall");
            }
        } finally {
            producer.shutdown();
        }
    }

    /** A producer and a consumer that trace what they do, and somebody who reads what was traced. */
    private void trace() throws Exception {
        String topic = "trace-" + run;
        Received received = new Received();
        Received traced = new Received();
        DefaultMQProducer producer = new DefaultMQProducer("traced-" + run, hook(), true, null);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
                "tracing-" + run, hook(), new AllocateMessageQueueAveragely(), true, null);
        DefaultMQPushConsumer reader = consumer("tracers-" + run, "RMQ_SYS_TRACE_TOPIC", "*", traced);
        try {
            producer.setNamesrvAddr(address);
            producer.start();
            prepare(consumer);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(received);
            consumer.start();
            String id = producer.send(message(topic, "followed")).getMsgId();
            same("followed", body(received.next()), "message");
            Set<String> wanted = Set.of("Pub", "SubBefore", "SubAfter");
            Set<String> steps = new TreeSet<>();
            while (!steps.containsAll(wanted)) {
                for (String line : body(traced.next()).split("\u0002")) {
                    if (line.contains(id)) {
                        steps.add(line.substring(0, line.indexOf('\u0001')));
                    }
                }
            }
        } finally {
            consumer.shutdown();
            producer.shutdown();
            reader.shutdown();
        }
    }

    // ---------------------------------------------------------------- consumers

    private void consume() throws Exception {
        String topic = "consume-" + run;
        DefaultMQProducer producer = producer("producers");
        Received received = new Received();
        try {
            Set<String> sent = new TreeSet<>();
            for (int n = 0; n < 200; n++) {
                Message message = message(topic, "message " + n);
                message.setKeys("key-" + n);
                message.setFlag(n);
                message.putUserProperty("shop", "north");
                sent.add(producer.send(message).getMsgId());
            }
            DefaultMQPushConsumer consumer = consumer("readers-" + run, topic, "*", received);
            try {
                Set<String> got = new TreeSet<>();
                while (got.size() < 200) {
                    MessageExt message = received.next();
                    same("key-" + message.getFlag(), message.getKeys(), "flag and key");
                    same("north", message.getUserProperty("shop"), "property");
                    check(message.getBornTimestamp() > 0, "born time");
                    same(0, message.getReconsumeTimes(), "reconsume times");
                    got.add(message.getMsgId());
                }
                same(sent, got, "ids");
                TimeUnit.SECONDS.sleep(1); // the last listener returns, and its offset counts
            } finally {
                consumer.shutdown();
            }
            Received more = new Received();
            consumer = consumer("readers-" + run, topic, "*", more);
            try {
                producer.send(message(topic, "after the restart"));
                same("after the restart", body(more.next()), "the first after the restart of the consumer");
                same(0, more.size(), "repeated messages");
            } finally {
                consumer.shutdown();
            }
        } finally {
            producer.shutdown();
        }
    }

    private void delivered() throws Exception {
        String topic = "delivered-" + run;
        DefaultMQProducer producer = producer("producers");
        Received received = new Received();
        DefaultMQPushConsumer consumer = consumer("held-" + run, topic, "*", received);
        try {
            producer.send(message(topic, "warm"));
            received.next();
            long begin = System.currentTimeMillis();
            producer.send(message(topic, "quick"));
            same("quick", body(received.next()), "message");
            long took = System.currentTimeMillis() - begin;
            check(took < 5000, "a held pull was not woken: " + took + " ms");
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    private void tags() throws Exception {
        String topic = "tags-" + run;
        DefaultMQProducer producer = producer("producers");
        try {
            for (int n = 0; n < 30; n++) {
                producer.send(new Message(topic, n % 3 == 0 ? "A" : n % 3 == 1 ? "B" : "C", bytes("m" + n)));
            }
            Received received = new Received();
            DefaultMQPushConsumer consumer = consumer("tagged-" + run, topic, "A || B", received);
            try {
                for (int n = 0; n < 20; n++) {
                    check(!received.next().getTags().equals("C"), "a message of another tag");
                }
                same(0, received.size(), "more messages");
            } finally {
                consumer.shutdown();
            }
        } finally {
            producer.shutdown();
        }
    }

    private void orderly() throws Exception {
        String topic = "orderly-" + run;
        DefaultMQProducer producer = producer("producers");
        Map<Integer, List<Integer>> seen = new ConcurrentHashMap<>();
        CountDownLatch all = new CountDownLatch(100);
        DefaultMQPushConsumer consumer = pushConsumer("ordered-" + run);
        prepare(consumer);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                seen.computeIfAbsent(message.getQueueId(), id -> Collections.synchronizedList(new ArrayList<>()))
                        .add(Integer.parseInt(body(message)));
                all.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        try {
            consumer.start();
            for (int n = 0; n < 100; n++) {
                int order = n;
                producer.send(
                        message(topic, Integer.toString(n)),
                        (queues, sent, key) -> queues.get(order % queues.size()),
                        null);
            }
            check(all.await(WAIT_S, TimeUnit.SECONDS), "only " + (100 - all.getCount()) + " of 100 came");
            same(4, seen.size(), "queues");
            for (List<Integer> numbers : seen.values()) {
                List<Integer> sorted = new ArrayList<>(numbers);
                Collections.sort(sorted);
                same(sorted, numbers, "order within a queue");
            }
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    private void broadcast() throws Exception {
        String topic = "broadcast-" + run;
        DefaultMQProducer producer = producer("producers");
        List<Received> all = List.of(new Received(), new Received());
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        try {
            for (Received received : all) {
                DefaultMQPushConsumer consumer = pushConsumer("broadcast-" + run);
                prepare(consumer);
                broadcasting(consumer);
                consumer.subscribe(topic, "*");
                consumer.registerMessageListener(received);
                consumer.start();
                consumers.add(consumer);
            }
            TimeUnit.SECONDS.sleep(1); // broadcasting begins at the end of each queue
            for (int n = 0; n < 20; n++) {
                producer.send(message(topic, "to all " + n));
            }
            for (Received received : all) {
                for (int n = 0; n < 20; n++) {
                    received.next();
                }
            }
        } finally {
            consumers.forEach(DefaultMQPushConsumer::shutdown);
            producer.shutdown();
        }
    }

    private void litePull() throws Exception {
        String topic = "litepull-" + run;
        DefaultMQProducer producer = producer("producers");
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("litepull-" + run, hook());
        consumer.setNamesrvAddr(address);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        try {
            for (int n = 0; n < 50; n++) {
                producer.send(message(topic, "pulled " + n));
            }
            consumer.start();
            int count = 0;
            long end = System.currentTimeMillis() + WAIT_S * 1000;
            while (count < 50 && System.currentTimeMillis() < end) {
                count += consumer.poll(1000).size();
            }
            same(50, count, "messages");
            consumer.commitSync();
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    private void retry() throws Exception {
        String topic = "retry-" + run;
        String group = "retriers-" + run;
        DefaultMQProducer producer = producer("producers");
        BlockingQueue<Integer> attempts = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = pushConsumer(group);
        prepare(consumer);
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                attempts.add(message.getTopic().equals(topic) ? message.getReconsumeTimes() : -1);
            }
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        Received dead = new Received();
        DefaultMQPushConsumer undertaker = null;
        try {
            consumer.start();
            SendResult sent = producer.send(message(topic, "poison"));
            for (int n = 0; n <= 2; n++) {
                same(n, attempts.poll(WAIT_S, TimeUnit.SECONDS), "reconsume times");
            }
            undertaker = consumer("undertakers-" + run, "%DLQ%" + group, "*", dead);
            MessageExt letter = dead.next();
            same("poison", body(letter), "body of the dead letter");
            same(sent.getMsgId(), letter.getMsgId(), "id of the dead letter");
            same(0, attempts.size(), "more attempts");
        } finally {
            consumer.shutdown();
            if (undertaker != null) {
                undertaker.shutdown();
            }
            producer.shutdown();
        }
    }

    private void rebalance() throws Exception {
        String topic = "rebalance-" + run;
        String group = "sharers-" + run;
        DefaultMQProducer producer = producer("producers");
        Received first = new Received();
        Received second = new Received();
        DefaultMQPushConsumer one = consumer(group, topic, "*", first);
        DefaultMQPushConsumer two = null;
        try {
            producer.send(message(topic, "begin"));
            first.next();
            two = consumer(group, topic, "*", second);
            long end = System.currentTimeMillis() + WAIT_S * 1000;
            while (second.size() == 0 && System.currentTimeMillis() < end) {
                producer.send(message(topic, "shared"));
                TimeUnit.MILLISECONDS.sleep(20);
            }
            check(second.size() > 0, "the second consumer got no queue");
            two.shutdown();
            second.clear();
            TimeUnit.SECONDS.sleep(2);
            first.clear();
            for (int n = 0; n < 40; n++) {
                producer.send(message(topic, "after"));
            }
            for (int n = 0; n < 40; n++) {
                first.next();
            }
        } finally {
            one.shutdown();
            producer.shutdown();
        }
    }

    /** The service is killed and started again after this prints that it sends; nothing may get lost. */
    private void restart(boolean pops) throws Exception {
        String topic = "restart-" + run;
        DefaultMQProducer producer = producer("producers");
        producer.setRetryTimesWhenSendFailed(10);
        Received received = new Received();
        String group = "survivors-" + run;
        DefaultMQPushConsumer consumer =
                pops ? popConsumer(producer, group, topic, received) : consumer(group, topic, "*", received);
        Set<String> acknowledged = new TreeSet<>();
        try {
            for (int n = 0; n < 600; n++) {
                Message message = message(topic, "message " + n);
                if (n % 3 == 0) {
                    MessageAccessor.putProperty(message, "TIMER_DELAY_MS", Integer.toString(n * 10));
                }
                for (long end = System.currentTimeMillis() + 60_000; ; ) {
                    try {
                        acknowledged.add(producer.send(message).getMsgId());
                        break;
                    } catch (Exception error) {
                        check(System.currentTimeMillis() < end, "no send for a minute: " + error);
                        TimeUnit.MILLISECONDS.sleep(200);
                    }
                }
                if (n == 200) {
                    System.out.println("{\"event\":\"sending\"}");
                }
                TimeUnit.MILLISECONDS.sleep(5);
            }
            Set<String> got = new TreeSet<>();
            while (!got.containsAll(acknowledged)) {
                got.add(received.next().getMsgId());
            }
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    // ---------------------------------------------------------------- POP

    /** Two consumers of a group pop, and get each message once. */
    private void pop() throws Exception {
        if (!pops()) {
            return;
        }
        String topic = "pop-" + run;
        String group = "poppers-" + run;
        DefaultMQPushConsumer first = null;
        DefaultMQPushConsumer second = null;
        DefaultMQProducer producer = producer("producers");
        Received received = new Received();
        try {
            first = popConsumer(producer, group, topic, received);
            second = popConsumer(producer, group, topic, received);
            Set<String> sent = new TreeSet<>();
            for (int n = 0; n < 200; n++) {
                Message message = message(topic, "message " + n);
                message.setKeys("key-" + n);
                if (n % 10 == 0) {
                    MessageAccessor.putProperty(message, "TIMER_DELAY_MS", "1000");
                }
                sent.add(producer.send(message).getMsgId());
            }
            Set<String> got = new TreeSet<>();
            while (got.size() < 200) {
                MessageExt message = received.next();
                same(topic, message.getTopic(), "topic");
                same(0, message.getReconsumeTimes(), "reconsume times");
                check(message.getProperty("POP_CK") != null, "it was pulled, not popped");
                check(got.add(message.getMsgId()), "a message came twice: " + body(message));
            }
            same(sent, got, "ids");
        } finally {
            shutDown(first);
            shutDown(second);
            producer.shutdown();
        }
    }

    /** The group pop-retriers of the topic pop-retry has two attempts; whoever runs this has made it. */
    private void popRetry() throws Exception {
        if (!pops()) {
            return;
        }
        DefaultMQProducer producer = producer("producers");
        DefaultMQPushConsumer consumer = pushConsumer("pop-retriers");
        prepare(consumer);
        clientRebalance(consumer);
        BlockingQueue<Integer> attempts = new LinkedBlockingQueue<>();
        consumer.subscribe("pop-retry", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> attempts.add(message.getReconsumeTimes()));
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        Received dead = new Received();
        DefaultMQPushConsumer undertaker = null;
        try {
            consumer.start();
            SendResult sent = producer.send(message("pop-retry", "poison"));
            long begin = System.currentTimeMillis();
            same(0, attempts.poll(WAIT_S, TimeUnit.SECONDS), "reconsume times");
            same(1, attempts.poll(WAIT_S, TimeUnit.SECONDS), "reconsume times of the second attempt");
            long took = System.currentTimeMillis() - begin;
            check(took >= 10_000, "the second attempt came after " + took + " ms");
            undertaker = consumer("undertakers-" + run, "%DLQ%pop-retriers", "*", dead);
            MessageExt letter = dead.next();
            same("poison", body(letter), "body of the dead letter");
            same(sent.getMsgId(), letter.getMsgId(), "id of the dead letter");
            same(0, attempts.size(), "more attempts");
        } finally {
            consumer.shutdown();
            shutDown(undertaker);
            producer.shutdown();
        }
    }

    /** Shares the group sharers of the topic pop-share with consumers of another protocol; prints what it got. */
    private void popShare() throws Exception {
        if (!pops()) {
            return;
        }
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = pushConsumer("sharers");
        prepare(consumer);
        clientRebalance(consumer);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        DefaultMQPushConsumer.class.getMethod("setPopBatchNums", int.class).invoke(consumer, 1);
        DefaultMQPushConsumer.class.getMethod("setPopThresholdForQueue", int.class).invoke(consumer, 1);
        consumer.subscribe("pop-share", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> got.add(body(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        try {
            consumer.start();
            long end = System.currentTimeMillis() + WAIT_S * 1000;
            while (!got.contains("end") && System.currentTimeMillis() < end) {
                TimeUnit.MILLISECONDS.sleep(50);
            }
            System.out.println("{\"got\":[\"" + String.join("\",\"", got) + "\"]}");
        } finally {
            consumer.shutdown();
        }
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private DefaultMQPushConsumer popConsumer(
            DefaultMQProducer producer, String group, String topic, Received received) throws Exception {
        Object client = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
        for (java.lang.reflect.Method method : client.getClass().getMethods()) {
            if (method.getName().equals("setMessageRequestMode")) { // what mqadmin setConsumeMode does
                Object mode = Enum.valueOf((Class) method.getParameterTypes()[3], "POP");
                method.invoke(client, address, topic, group, mode, 0, 5000L);
            }
        }
        DefaultMQPushConsumer consumer = pushConsumer(group);
        prepare(consumer);
        clientRebalance(consumer);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(received);
        consumer.start();
        return consumer;
    }

    /** Whether this client can pop: those before version 5 cannot. */
    private static boolean pops() {
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setClientRebalance")) {
                return true;
            }
        }
        return false;
    }

    /** Leaves it to the broker whether this consumer pops. */
    private static void clientRebalance(DefaultMQPushConsumer consumer) throws Exception {
        DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
    }

    private static void shutDown(DefaultMQPushConsumer consumer) {
        if (consumer != null) {
            consumer.shutdown();
        }
    }

    // ---------------------------------------------------------------- transactions

    /** Ends transactions as their bodies say; what it does not know at first it commits when it is asked. */
    private static class Ends implements TransactionListener {
        final BlockingQueue<MessageExt> asked = new LinkedBlockingQueue<>();

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            if (body.startsWith("commit")) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
            return body.startsWith("rollback")
                    ? LocalTransactionState.ROLLBACK_MESSAGE
                    : LocalTransactionState.UNKNOW;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            asked.add(message);
            return body(message).startsWith("asked rollback")
                    ? LocalTransactionState.ROLLBACK_MESSAGE
                    : LocalTransactionState.COMMIT_MESSAGE;
        }
    }

    private void transaction() throws Exception {
        String topic = "transaction-" + run;
        Ends ends = new Ends();
        TransactionMQProducer producer = transactionProducer("payers-" + run, ends);
        Received received = new Received();
        DefaultMQPushConsumer consumer = consumer("paid-" + run, topic, "*", received);
        try {
            Map<String, String> sent = new LinkedHashMap<>();
            for (String body : List.of("commit", "rollback", "asked", "asked rollback")) {
                Message message = message(topic, body);
                message.setKeys("key of " + body);
                SendResult result = producer.sendMessageInTransaction(message, null);
                same(SendStatus.SEND_OK, result.getSendStatus(), body);
                same(result.getMsgId(), result.getTransactionId(), "transaction id");
                sent.put(body, result.getTransactionId());
            }
            Set<String> got = new TreeSet<>();
            for (int n = 0; n < 2; n++) {
                MessageExt message = received.next();
                got.add(body(message));
                same(sent.get(body(message)), message.getTransactionId(), "transaction id of what was received");
                same("key of " + body(message), message.getKeys(), "key");
            }
            same(Set.of("commit", "asked"), got, "messages");
            Set<String> asked = new TreeSet<>();
            while (asked.size() < 2) {
                MessageExt message = ends.asked.poll(WAIT_S, TimeUnit.SECONDS);
                check(message != null, "no check within " + WAIT_S + " s");
                same(sent.get(body(message)), message.getTransactionId(), "transaction id of a check");
                asked.add(body(message));
            }
            same(Set.of("asked", "asked rollback"), asked, "checked messages");
            Message delayed = message(topic, "commit late");
            MessageAccessor.putProperty(delayed, "TIMER_DELAY_MS", "1500");
            producer.setTransactionListener(new Ends() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                    try {
                        TimeUnit.SECONDS.sleep(1);
                    } catch (InterruptedException error) {
                        return LocalTransactionState.ROLLBACK_MESSAGE;
                    }
                    delayed.putUserProperty("decided", Long.toString(System.currentTimeMillis()));
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
            });
            producer.sendMessageInTransaction(delayed, null);
            same("commit late", body(received.next()), "delayed message");
            long waited = System.currentTimeMillis() - Long.parseLong(delayed.getUserProperty("decided"));
            check(waited >= 1500, "it came " + waited + " ms after the commit");
            same(0, received.size(), "more messages");
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    /** The service is killed and started again between the half message and its commit. */
    private void transactionRestart() throws Exception {
        String topic = "transaction-restart-" + run;
        TransactionMQProducer producer = transactionProducer("payers-" + run, new Ends() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                System.out.println("{\"event\":\"half\"}");
                try {
                    TimeUnit.SECONDS.sleep(1);
                } catch (InterruptedException error) {
                    return LocalTransactionState.UNKNOW;
                }
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        Received received = new Received();
        DefaultMQPushConsumer consumer = consumer("paid-" + run, topic, "*", received);
        try {
            SendResult result = producer.sendMessageInTransaction(message(topic, "paid"), null);
            MessageExt message = received.next();
            same(result.getMsgId(), message.getMsgId(), "id");
            TimeUnit.SECONDS.sleep(2);
            same(0, received.size(), "repeated messages");
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    /** Leaves a transaction open until this process is killed. */
    private void transactionLeft() throws Exception {
        TransactionMQProducer producer = transactionProducer("heirs", new Ends() {
            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        producer.sendMessageInTransaction(message("inherited", "left"), null);
        System.out.println("{\"event\":\"left\"}");
        TimeUnit.DAYS.sleep(1);
    }

    /** Another producer of that group ends what the killed one has left open. */
    private void transactionTaken() throws Exception {
        Ends ends = new Ends();
        TransactionMQProducer producer = transactionProducer("heirs", ends);
        Received received = new Received();
        DefaultMQPushConsumer consumer = consumer("inheritors", "inherited", "*", received);
        try {
            producer.send(message("heirs", "here")); // a producer sends heartbeats where it has sent messages
            same("left", body(received.next()), "message");
            same("left", body(ends.asked.take()), "message of the check");
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    private TransactionMQProducer transactionProducer(String group, TransactionListener listener) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group, hook());
        producer.setNamesrvAddr(address);
        producer.setInstanceName("producer-" + group + System.nanoTime());
        producer.setHeartbeatBrokerInterval(1000);
        producer.setTransactionListener(listener);
        producer.start();
        return producer;
    }

    // ---------------------------------------------------------------- what the scenarios share

    /** Keeps what a consumer got. */
    private static final class Received implements MessageListenerConcurrently {
        private final BlockingQueue<MessageExt> messages = new LinkedBlockingQueue<>();

        @Override
        public ConsumeConcurrentlyStatus consumeMessage(
                List<MessageExt> found,
                org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext context) {
            messages.addAll(found);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }

        MessageExt next() throws InterruptedException {
            MessageExt message = messages.poll(WAIT_S, TimeUnit.SECONDS);
            check(message != null, "no message within " + WAIT_S + " s");
            return message;
        }

        int size() {
            return messages.size();
        }

        void clear() {
            messages.clear();
        }
    }

    private DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group + "-" + run, hook());
        producer.setNamesrvAddr(address);
        producer.setInstanceName("producer-" + group + System.nanoTime());
        producer.start();
        return producer;
    }

    private DefaultMQPushConsumer consumer(String group, String topic, String tags, Received received)
            throws Exception {
        DefaultMQPushConsumer consumer = pushConsumer(group);
        prepare(consumer);
        consumer.subscribe(topic, tags);
        consumer.registerMessageListener(received);
        consumer.start();
        return consumer;
    }

    private DefaultMQPushConsumer pushConsumer(String group) {
        return new DefaultMQPushConsumer(group, hook(), new AllocateMessageQueueAveragely());
    }

    /** The enumeration is in another package since version 5. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void broadcasting(DefaultMQPushConsumer consumer) throws Exception {
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Class model = method.getParameterTypes()[0];
                method.invoke(consumer, Enum.valueOf(model, "BROADCASTING"));
            }
        }
    }

    private void prepare(DefaultMQPushConsumer consumer) {
        consumer.setNamesrvAddr(address);
        consumer.setInstanceName("consumer-" + System.nanoTime());
    }

    private RPCHook hook() {
        if (token.equals("-")) {
            return null;
        }
        return new RPCHook() {
            @Override
            public void doBeforeRequest(String remote, RemotingCommand request) {
                request.addExtField("AccessKey", token);
            }

            @Override
            public void doAfterResponse(String remote, RemotingCommand request, RemotingCommand response) {}
        };
    }

    private static Message message(String topic, String body) {
        return new Message(topic, bytes(body));
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String body(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static void check(boolean holds, String problem) {
        if (!holds) {
            throw new AssertionError(problem);
        }
    }

    private static void same(Object expected, Object found, String what) {
        check(expected.equals(found), what + ": expected " + expected + ", found " + found);
    }
}
