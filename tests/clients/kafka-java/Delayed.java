import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Schedules records in three transactions, the second of which it aborts, and reads the target as a consumer
 * group does. Prints a line for each record that came: key, value, and the partition it is in.
 *
 * <p>Arguments: brokers, inlet, target, and how many records are to come. A record that goes to the target
 * at once has the value "direct": Kafka's own client has chosen its partition.
 */
public final class Delayed {
    private static final int KEYS = 5;
    private static final String DELAY_MS = "300";
    private static final Duration PATIENCE = Duration.ofMinutes(5);

    public static void main(String[] arguments) {
        String brokers = arguments[0];
        schedule(brokers, arguments[1], arguments[2]);
        read(brokers, arguments[2], Integer.parseInt(arguments[3]));
    }

    private static void schedule(String brokers, String inlet, String target) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", brokers);
        settings.put("transactional.id", "java-" + target);
        settings.put("compression.type", "lz4");
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            for (int transaction = 0; transaction < 3; transaction++) {
                producer.beginTransaction();
                for (int number = 0; number < KEYS; number++) {
                    String key = "key-" + number;
                    var record = new ProducerRecord<>(inlet, key, "value-" + transaction);
                    record.headers().add("TIMER_TOPIC", bytes(target)).add("TIMER_DELAY_MS", bytes(DELAY_MS));
                    producer.send(record);
                    if (transaction == 0) {
                        producer.send(new ProducerRecord<>(target, key, "direct"));
                    }
                }
                if (transaction == 1) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
    }

    private static void read(String brokers, String target, int count) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", brokers);
        settings.put("group.id", "java-" + target);
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(target));
            long end = System.nanoTime() + PATIENCE.toNanos();
            int came = 0;
            // The last poll is to find what came twice.
            for (boolean last = false; System.nanoTime() < end; last = came >= count) {
                for (var record : consumer.poll(Duration.ofMillis(500))) {
                    came++;
                    System.out.println(record.key() + " " + record.value() + " " + record.partition());
                }
                if (last) {
                    return;
                }
            }
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
