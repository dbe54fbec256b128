package shop;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;

/** Prints what arrives, and how long it was delayed, until it is stopped. Argument: the name server. */
public final class DelayedConsumer {
    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("reminder-consumers");
        consumer.setNamesrvAddr(args.length > 0 ? args[0] : "localhost:9876");
        consumer.subscribe("reminders", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String text = new String(message.getBody(), StandardCharsets.UTF_8);
                long delayMs = System.currentTimeMillis() - message.getBornTimestamp();
                System.out.println(text + ", after " + delayMs + " ms");
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("waiting");
    }
}
