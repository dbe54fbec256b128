import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** RocketMQ's Java gRPC client, driven by lines of JSON: see tests/harness/grpc_clients.py. */
public class GrpcClient {
    private static final Gson GSON = new GsonBuilder().serializeNulls().create();
    private static final Pattern CODE = Pattern.compile("response-code=([0-9]+)");
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    private final ClientConfiguration configuration;
    private Producer producer;
    private final Map<String, SimpleConsumer> consumers = new HashMap<>();
    private final Map<String, Held> views = new HashMap<>();
    private final Map<String, List<Object>> consumed = new HashMap<>();
    private Producer transactor;
    private final Map<String, Transaction> begun = new HashMap<>();
    private final List<Object> checked = new ArrayList<>();

    private static class Held {
        final SimpleConsumer consumer;
        final MessageView message;

        Held(SimpleConsumer consumer, MessageView message) {
            this.consumer = consumer;
            this.message = message;
        }
    }

    private GrpcClient(String endpoint, String accessKey, boolean tls) {
        ClientConfigurationBuilder builder =
            ClientConfiguration.newBuilder().setEndpoints(endpoint).enableSsl(tls);
        if (!accessKey.isEmpty()) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(accessKey, "any"));
        }
        configuration = builder.build();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        GrpcClient client = new GrpcClient(arguments[0], arguments[1], arguments[2].equals("tls"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> answer = new HashMap<>();
            try {
                client.run(JsonParser.parseString(line).getAsJsonObject(), answer);
            } catch (Throwable error) {
                answer = new HashMap<>(Map.of("error", code(error), "detail", String.valueOf(error)));
            }
            out.write(("@" + GSON.toJson(answer) + "\n").getBytes(StandardCharsets.UTF_8));
            out.flush();
        }
        System.exit(0);
    }

    private void run(JsonObject given, Map<String, Object> answer) throws Exception {
        switch (given.get("do").getAsString()) {
            case "send":
                send(given, answer);
                break;
            case "begin":
                begin(given, answer);
                break;
            case "end": {
                Transaction transaction = begun.get(text(given, "message_id", ""));
                if (text(given, "how", "").equals("COMMIT")) {
                    transaction.commit();
                } else {
                    transaction.rollback();
                }
                break;
            }
            case "checked":
                synchronized (checked) {
                    while (checked.size() < number(given, "count", 0)) {
                        checked.wait();
                    }
                    answer.put("messages", new ArrayList<>(checked));
                }
                break;
            case "recall":
                answer.put("id", producer.recallMessage(text(given, "topic", ""), text(given, "handle", ""))
                    .getMessageId().toString());
                break;
            case "receive":
                receive(given, answer);
                break;
            case "ack": {
                Held held = views.get(text(given, "message_id", ""));
                held.consumer.ack(held.message);
                break;
            }
            case "hide": {
                Held held = views.get(text(given, "message_id", ""));
                held.consumer.changeInvisibleDuration(held.message, Duration.ofMillis(number(given, "ms", 0)));
                break;
            }
            case "push":
                push(given);
                break;
            case "consumed": {
                List<Object> found = consumed.get(text(given, "topic", ""));
                synchronized (found) {
                    while (found.size() < number(given, "count", 0)) {
                        found.wait();
                    }
                    answer.put("messages", new ArrayList<>(found));
                }
                break;
            }
            default:
                throw new IllegalArgumentException("unknown command");
        }
    }

    private void send(JsonObject given, Map<String, Object> answer) throws Exception {
        if (producer == null) {
            producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).build();
        }
        MessageBuilder builder = PROVIDER.newMessageBuilder()
            .setTopic(text(given, "topic", ""))
            .setBody(text(given, "body", "").getBytes(StandardCharsets.UTF_8));
        if (given.has("tag")) {
            builder.setTag(text(given, "tag", ""));
        }
        if (given.has("keys")) {
            builder.setKeys(GSON.fromJson(given.get("keys"), String[].class));
        }
        if (given.has("group")) {
            builder.setMessageGroup(text(given, "group", ""));
        }
        if (given.has("delay_ms")) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + number(given, "delay_ms", 0));
        }
        if (given.has("properties")) {
            for (Map.Entry<String, JsonElement> one : given.getAsJsonObject("properties").entrySet()) {
                builder.addProperty(one.getKey(), one.getValue().getAsString());
            }
        }
        SendReceipt receipt = producer.send(builder.build());
        String handle = receipt.getRecallHandle();
        answer.put("id", receipt.getMessageId().toString());
        answer.put("handle", handle == null || handle.isEmpty() ? null : handle);
    }

    private void begin(JsonObject given, Map<String, Object> answer) throws Exception {
        String topic = text(given, "topic", "");
        String outcome = text(given, "outcome", "UNKNOWN");
        if (transactor == null) {
            transactor = PROVIDER.newProducerBuilder()
                .setClientConfiguration(configuration)
                .setTopics(topic)
                .setTransactionChecker(message -> {
                    synchronized (checked) {
                        checked.add(shown(message));
                        checked.notifyAll();
                    }
                    return TransactionResolution.valueOf(outcome);
                })
                .build();
        }
        Transaction transaction = transactor.beginTransaction();
        SendReceipt receipt = transactor.send(PROVIDER.newMessageBuilder()
            .setTopic(topic)
            .setBody(text(given, "body", "").getBytes(StandardCharsets.UTF_8))
            .build(), transaction);
        begun.put(receipt.getMessageId().toString(), transaction);
        answer.put("id", receipt.getMessageId().toString());
    }

    private void receive(JsonObject given, Map<String, Object> answer) throws Exception {
        String topic = text(given, "topic", "");
        String group = text(given, "group", "");
        String tags = text(given, "tags", "*");
        long waitMs = number(given, "wait_ms", 5_000);
        String name = String.join(" ", topic, group, tags, String.valueOf(waitMs));
        SimpleConsumer consumer = consumers.get(name);
        if (consumer == null) {
            consumer = PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(group)
                .setAwaitDuration(Duration.ofMillis(waitMs))
                .setSubscriptionExpressions(Map.of(topic, new FilterExpression(tags)))
                .build();
            consumers.put(name, consumer);
        }
        List<Object> found = new ArrayList<>();
        int count = (int) number(given, "count", 32);
        for (MessageView one : consumer.receive(count, Duration.ofMillis(number(given, "invisible_ms", 15_000)))) {
            views.put(one.getMessageId().toString(), new Held(consumer, one));
            found.add(shown(one));
        }
        answer.put("messages", found);
    }

    private void push(JsonObject given) throws Exception {
        String topic = text(given, "topic", "");
        long failures = number(given, "failures", 0);
        List<Object> found = new ArrayList<>();
        consumed.put(topic, found);
        PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(text(given, "group", ""))
            .setSubscriptionExpressions(Map.of(topic, new FilterExpression(text(given, "tags", "*"))))
            .setMessageListener(message -> {
                synchronized (found) {
                    found.add(shown(message));
                    found.notifyAll();
                    return found.size() <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                }
            })
            .build();
    }

    private static Map<String, Object> shown(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        Map<String, Object> found = new HashMap<>();
        found.put("id", message.getMessageId().toString());
        found.put("body", new String(bytes, StandardCharsets.UTF_8));
        found.put("tag", message.getTag().orElse(null));
        found.put("keys", new TreeSet<>(message.getKeys()));
        found.put("group", message.getMessageGroup().orElse(null));
        found.put("attempt", message.getDeliveryAttempt());
        found.put("properties", new TreeMap<>(message.getProperties()));
        found.put("corrupted", false); // this client does not show corrupted messages
        return found;
    }

    private static int code(Throwable error) {
        Matcher found = CODE.matcher(String.valueOf(error));
        return found.find() ? Integer.parseInt(found.group(1)) : 0;
    }

    private static String text(JsonObject given, String name, String otherwise) {
        return given.has(name) ? given.get(name).getAsString() : otherwise;
    }

    private static long number(JsonObject given, String name, long otherwise) {
        return given.has(name) ? given.get(name).getAsLong() : otherwise;
    }
}
