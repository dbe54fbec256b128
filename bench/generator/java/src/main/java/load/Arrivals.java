package load;

import java.nio.ByteBuffer;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.BitSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** A push consumer that counts: which numbers came, which twice, and how late. */
final class Arrivals {
    private static final int TAKEN_AT_ONCE = 32;

    private final DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("load-consumers");
    private BitSet seen = new BitSet();
    private Values latenessUs = new Values();
    private int expected;
    private int phase;
    private int count;
    private int twice;
    private int early;
    private long lastNanos;

    Arrivals(String nameServer, String topic, int expected) throws MQClientException {
        this.expected = expected;
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(TAKEN_AT_ONCE);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            take(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
    }

    void start() throws MQClientException {
        consumer.start();
    }

    /** Forget what came, and expect messages 0 to count - 1 of the next phase. */
    synchronized void expect(int newCount, int newPhase) {
        seen = new BitSet();
        latenessUs = new Values();
        expected = newCount;
        phase = newPhase;
        count = 0;
        twice = 0;
        early = 0;
    }

    /** Wait until so many messages came, but not without end. */
    synchronized void await(int wanted, long patienceMs) throws InterruptedException {
        long end = System.nanoTime() + patienceMs * 1_000_000;
        for (long leftMs; count < wanted && (leftMs = (end - System.nanoTime()) / 1_000_000) > 0; ) {
            wait(leftMs);
        }
    }

    synchronized int count() {
        return count;
    }

    /** When the last message came that was not seen before, as System.nanoTime. */
    synchronized long lastNanos() {
        return lastNanos;
    }

    synchronized Report into(Report report) {
        return report.set("measured", count)
                .set("lost", expected - count)
                .set("twice", twice)
                .set("early", early)
                .set("lateness", List.of(latenessUs));
    }

    private synchronized void take(List<MessageExt> messages) {
        long nowUs = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
        for (MessageExt message : messages) {
            ByteBuffer body = ByteBuffer.wrap(message.getBody());
            if (body.getInt() != phase) {
                continue;
            }
            int number = body.getInt();
            if (seen.get(number)) {
                twice++;
                continue;
            }
            seen.set(number);
            count++;
            long dueMs = body.getLong();
            if (dueMs != 0) {
                long lateUs = nowUs - dueMs * 1_000;
                early += lateUs < 0 ? 1 : 0;
                latenessUs.add(Math.max(lateUs, 0));
            }
        }
        lastNanos = System.nanoTime();
        notifyAll();
    }
}
