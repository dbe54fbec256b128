package load;

import java.nio.ByteBuffer;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Sends of RocketMQ's own gRPC client to the topic TOPIC, which is there: each thread sends again when it has its
 * answer. The arguments are those of {@link Load}.
 */
final class GrpcSends {
    private static final String TOPIC = "load";
    private static final int BODY_BYTES = 200;

    private GrpcSends() {}

    static void main(String[] arguments) {
        int code = 0;
        try {
            run(arguments[0], new Numbers(arguments));
        } catch (Throwable error) {
            error.printStackTrace();
            code = 1;
        }
        System.exit(code); // the client's threads would keep the process alive
    }

    private static void run(String address, Numbers numbers) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration =
            ClientConfiguration.newBuilder().setEndpoints(address).enableSsl(false).build();
        Producer producer =
            provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(TOPIC).build();
        AtomicInteger next = new AtomicInteger();
        Threads.measure(numbers, 1, () -> {
            byte[] body = new byte[BODY_BYTES];
            ByteBuffer.wrap(body).putInt(next.getAndIncrement());
            producer.send(provider.newMessageBuilder().setTopic(TOPIC).setBody(body).build());
        });
    }
}
