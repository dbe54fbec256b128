package load;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * One load of RocketMQ's own clients. Arguments: the address of the name server, the name of the load, and its
 * numbers as name=value; for the load grpc the address that serves gRPC. Prints what {@link Report} says, one JSON object a line.
 *
 * <pre>
 *     send    threads batch warmUpMs ms          each thread sends again when it has its answer
 *     push    count batch threads warmUp         messages are stored, then a push consumer reads them
 *     burst   count warmUp                       all are due in one millisecond, for one push consumer
 *     steady  rate ms delayMs warmUp             sent at this rate, each due delayMs later
 *     grpc    threads warmUpMs ms                as send, over gRPC
 * </pre>
 *
 * A body has 200 bytes. It begins with the phase of the load, the number of the message in it, and its due time, so
 * what is lost or comes twice is seen, and a message of the warm-up does not count.
 */
public final class Load {
    private static final int BODY_BYTES = 200;
    private static final int IN_FLIGHT_MAX = 1_000;
    private static final long PATIENCE_MS = 120_000;
    private static final long SETTLE_MS = 1_000;
    private static final int WARM_UP_LEAD_MS = 1_000;
    private static final int WARM_UP_MIN = 1_000;
    private static final int LEAD_MS = 2_000;
    /** A burst is due after this multiple of the time that it takes to store it at the speed of the warm-up. */
    private static final double STORING_SLACK = 1.5;

    private final String nameServer;
    private final Numbers numbers;
    private final DefaultMQProducer producer = new DefaultMQProducer("load-producers");
    private final String topic = "load-" + Long.toString(System.nanoTime(), 36);
    private int phase;
    private double warmUpMsEach;

    private Load(String nameServer, Numbers numbers) {
        this.nameServer = nameServer;
        this.numbers = numbers;
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(60_000);
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[1].equals("grpc")) {
            GrpcSends.main(arguments);
            return;
        }
        Load load = new Load(arguments[0], new Numbers(arguments));
        int code = 0;
        try {
            load.producer.start();
            load.run(arguments[1]);
        } catch (Throwable error) {
            error.printStackTrace();
            code = 1;
        }
        System.exit(code); // the client's threads would keep the process alive
    }

    private void run(String name) throws Exception {
        switch (name) {
            case "send" -> send();
            case "push" -> push();
            case "burst" -> burst();
            case "steady" -> steady();
            default -> throw new IllegalArgumentException("no load " + name);
        }
    }

    // ---------------------------------------------------------------- sends

    private void send() throws Exception {
        int batch = numbers.of("batch");
        AtomicInteger next = new AtomicInteger();
        Threads.measure(numbers, batch, () -> sendMany(next.getAndAdd(batch), batch));
    }

    private void sendMany(int first, int batch) throws Exception {
        if (batch == 1) {
            check(producer.send(message(first)));
            return;
        }
        List<Message> messages = new ArrayList<>(batch);
        for (int number = first; number < first + batch; number++) {
            messages.add(message(number));
        }
        check(producer.send(messages));
    }

    // ---------------------------------------------------------------- a backlog

    private void push() throws Exception {
        int count = numbers.of("count");
        int batch = numbers.of("batch");
        int warmUp = numbers.of("warmUp");
        AtomicInteger next = new AtomicInteger();
        Threads.run(numbers.of("threads"), () -> {
            for (int first = next.getAndAdd(batch); first < count; first = next.getAndAdd(batch)) {
                sendMany(first, Math.min(batch, count - first));
            }
            return null;
        });
        Arrivals arrivals = new Arrivals(nameServer, topic, count);
        arrivals.start();
        arrivals.await(warmUp, PATIENCE_MS);
        long began = System.nanoTime();
        int before = arrivals.count();
        Report.measuring();
        arrivals.await(count, PATIENCE_MS);
        Report.measured();
        long tookUs = (arrivals.lastNanos() - began) / 1_000;
        Thread.sleep(SETTLE_MS);
        arrivals.into(new Report()).set("measured", arrivals.count() - before).set("took_us", tookUs).print();
    }

    // ---------------------------------------------------------------- due messages

    private void burst() throws Exception {
        Arrivals arrivals = warmedUp();
        int count = numbers.of("count");
        arrivals.expect(count, ++phase);
        long dueMs = System.currentTimeMillis() + LEAD_MS + (long) (STORING_SLACK * count * warmUpMsEach);
        Sending sending = new Sending();
        for (int number = 0; number < count; number++) {
            sending.begin(due(number, dueMs));
        }
        sending.finish();
        long storedMs = System.currentTimeMillis();
        Thread.sleep(Math.max(0, dueMs - System.currentTimeMillis()));
        Report.measuring();
        arrivals.await(count, PATIENCE_MS);
        Report.measured();
        Thread.sleep(SETTLE_MS);
        arrivals.into(new Report()).set("stored_late_ms", Math.max(0, storedMs - dueMs)).print();
    }

    private void steady() throws Exception {
        Arrivals arrivals = warmedUp();
        int rate = numbers.of("rate");
        int count = (int) ((long) rate * numbers.of("ms") / 1_000);
        arrivals.expect(count, ++phase);
        long began = System.nanoTime();
        long beganMs = System.currentTimeMillis() + numbers.of("delayMs");
        Sending sending = new Sending();
        for (int number = 0; number < count; number++) {
            long at = number * 1_000_000_000L / rate;
            for (long left; (left = began + at - System.nanoTime()) > 0; ) {
                LockSupport.parkNanos(left);
            }
            sending.begin(due(number, beganMs + at / 1_000_000));
        }
        sending.finish();
        Report.measuring();
        arrivals.await(count, PATIENCE_MS + numbers.of("delayMs"));
        Report.measured();
        Thread.sleep(SETTLE_MS);
        arrivals.into(new Report()).print();
    }

    /** Return a consumer that has received a number of delayed messages, so that all code is compiled. */
    private Arrivals warmedUp() throws Exception {
        int count = Math.max(numbers.of("warmUp"), WARM_UP_MIN);
        check(producer.send(due(0, System.currentTimeMillis()))); // makes the topic, for the consumer to find
        Arrivals arrivals = new Arrivals(nameServer, topic, 1);
        arrivals.start();
        arrivals.await(1, PATIENCE_MS);
        arrivals.expect(count, ++phase);
        long beganMs = System.currentTimeMillis();
        Sending sending = new Sending();
        for (int number = 0; number < count; number++) {
            sending.begin(due(number, System.currentTimeMillis() + WARM_UP_LEAD_MS));
        }
        sending.finish();
        warmUpMsEach = (double) (System.currentTimeMillis() - beganMs) / count;
        arrivals.await(count, PATIENCE_MS);
        return arrivals;
    }

    /** Sends without waiting, with at most IN_FLIGHT_MAX in flight. */
    private final class Sending implements SendCallback {
        private final Semaphore free = new Semaphore(IN_FLIGHT_MAX);
        private final AtomicReference<Throwable> failure = new AtomicReference<>();

        void begin(Message message) throws Exception {
            free.acquire();
            producer.send(message, this);
        }

        void finish() throws Exception {
            free.acquire(IN_FLIGHT_MAX);
            if (failure.get() != null) {
                throw new ExecutionException("a send failed", failure.get());
            }
        }

        @Override
        public void onSuccess(SendResult result) {
            free.release();
        }

        @Override
        public void onException(Throwable error) {
            failure.compareAndSet(null, error);
            free.release();
        }
    }

    // ---------------------------------------------------------------- messages and threads

    private Message message(int number) {
        byte[] body = new byte[BODY_BYTES];
        ByteBuffer.wrap(body).putInt(phase).putInt(number);
        return new Message(topic, body);
    }

    private Message due(int number, long dueMs) {
        Message message = message(number);
        ByteBuffer.wrap(message.getBody()).putLong(2 * Integer.BYTES, dueMs);
        message.setDeliverTimeMs(dueMs);
        return message;
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("a send ended with " + result.getSendStatus());
        }
    }
}
