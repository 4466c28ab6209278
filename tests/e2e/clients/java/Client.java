import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.OutputStream;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own producer, consumer and admin client as a program for the end-to-end tests: what it does is said by one
 * argument, in JSON (tests/e2e/clients/programs.py says which). A member of a group prints "partition offset" of each
 * record, and leaves when its standard input ends.
 */
public class Client {
    public static void main(String[] args) throws Exception {
        JsonNode wanted = new ObjectMapper().readTree(args[0]);
        Properties settings = new Properties();
        wanted.get("properties").properties().forEach(set -> settings.put(set.getKey(), set.getValue().asText()));
        switch (wanted.get("role").asText()) {
            case "create" -> create(wanted, settings);
            case "produce" -> produce(wanted, settings);
            case "consume" -> consume(wanted, settings);
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    static void create(JsonNode wanted, Properties settings) throws ExecutionException, InterruptedException {
        try (Admin admin = Admin.create(settings)) {
            NewTopic topic = new NewTopic(wanted.get("topic").asText(), wanted.get("partitions").asInt(), (short) 1);
            admin.createTopics(List.of(topic)).all().get();
        }
    }

    /** Sends one record after another, each when the one before it was acknowledged. */
    static void produce(JsonNode wanted, Properties settings) throws ExecutionException, InterruptedException {
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            for (int number = 0; number < wanted.get("count").asInt(); number++) {
                int partition = number % wanted.get("partitions").asInt();
                byte[] value = new byte[wanted.get("size").asInt()];
                producer.send(new ProducerRecord<>(wanted.get("topic").asText(), partition, null, value)).get();
            }
        }
    }

    static void consume(JsonNode wanted, Properties settings) {
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            Thread leaving = new Thread(() -> {
                try {
                    System.in.transferTo(OutputStream.nullOutputStream());
                } catch (java.io.IOException error) {
                    error.printStackTrace();
                }
                consumer.wakeup();
            });
            leaving.setDaemon(true);
            leaving.start();
            consumer.subscribe(List.of(wanted.get("topic").asText()));
            while (true) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(record.partition() + " " + record.offset());
                }
                System.out.flush();
            }
        } catch (WakeupException leaves) {
            // closed above, which commits and leaves the group
        }
    }
}
