package shop;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Sends two delayed messages: one by delay level, one by milliseconds. Argument: the name server. */
public final class DelayedProducer {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("reminder-producers");
        producer.setNamesrvAddr(args.length > 0 ? args[0] : "localhost:9876");
        producer.start();

        Message byLevel = new Message("reminders", "water the plants".getBytes(StandardCharsets.UTF_8));
        byLevel.setDelayTimeLevel(3); // 10 seconds
        print(producer.send(byLevel));

        Message byTime = new Message("reminders", "feed the cat".getBytes(StandardCharsets.UTF_8));
        byTime.setDelayTimeMs(2_500);
        print(producer.send(byTime));

        producer.shutdown();
    }

    private static void print(SendResult result) {
        System.out.println(result.getSendStatus() + " " + result.getMsgId());
    }
}
