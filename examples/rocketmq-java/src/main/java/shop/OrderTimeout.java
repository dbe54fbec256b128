package shop;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A shop closes orders that are not paid within 30 minutes. Arguments: the name server, and how many seconds a
 * customer has instead.
 */
public final class OrderTimeout {
    private enum State {
        OPEN,
        PAID,
        CLOSED
    }

    private static final String TOPIC = "order-timeouts";
    private static final Map<String, State> ORDERS = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        String nameServer = args.length > 0 ? args[0] : "localhost:9876";
        long timeoutMs = args.length > 1 ? 1_000 * Long.parseLong(args[1]) : 30 * 60 * 1_000;
        List<String> names = List.of("order-1", "order-2", "order-3");
        CountDownLatch left = new CountDownLatch(names.size());

        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("order-closers");
        consumer.setNamesrvAddr(nameServer);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String order = new String(message.getBody(), StandardCharsets.UTF_8);
                if (ORDERS.replace(order, State.OPEN, State.CLOSED)) {
                    System.out.println(order + " was not paid in time, and is closed");
                } else {
                    System.out.println(order + " is paid");
                }
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();

        DefaultMQProducer producer = new DefaultMQProducer("shop");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        for (String order : names) {
            ORDERS.put(order, State.OPEN);
            Message timeout = new Message(TOPIC, order.getBytes(StandardCharsets.UTF_8));
            timeout.setKeys(order);
            timeout.setDelayTimeMs(timeoutMs);
            producer.send(timeout);
        }
        ORDERS.replace("order-2", State.OPEN, State.PAID);

        left.await();
        producer.shutdown();
        consumer.shutdown();
    }
}
