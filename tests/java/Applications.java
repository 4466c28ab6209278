import java.io.FileReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;

/** Small applications of Kafka's Java libraries: APPLICATION BOOTSTRAP-SERVERS ARGUMENT... */
public class Applications {
    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "count-words" -> countWords(args[1], args[2], args[3], args[4], args[5]);
            case "share" -> share(args[1], args[2], args[3], Integer.parseInt(args[4]));
            case "numbers" -> sendNumbers(args[1], args[2], Integer.parseInt(args[3]));
            case "transactions" -> commitAndAbort(args[1], args[2], args[3], Integer.parseInt(args[4]));
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    /** Counts words exactly once, until the process ends. */
    static void countWords(String servers, String protocol, String input, String output, String state) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("application.id", "count-" + input);
        settings.put("state.dir", state);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", "100");
        settings.put("group.protocol", protocol);
        settings.put("auto.offset.reset", "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(input, Consumed.with(Serdes.String(), Serdes.String()))
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count()
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(output, Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    /** Prints so many records of a topic, as a member of a share group. */
    static void share(String servers, String topic, String group, int count) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", group);
        try (KafkaShareConsumer<String, String> consumer =
                new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            for (int seen = 0; seen < count; ) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    System.out.println(record.value());
                    seen++;
                }
                consumer.commitSync();
            }
        }
    }

    /** Produces so many numbers, each in a batch of its own, a millisecond apart; its settings are in a file. */
    static void sendNumbers(String file, String topic, int count) throws Exception {
        Properties settings = new Properties();
        try (FileReader reader = new FileReader(file)) {
            settings.load(reader);
        }
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < count; number++) {
                producer.send(
                        new ProducerRecord<>(topic, Integer.toString(number)),
                        (metadata, error) -> {
                            if (error != null) {
                                System.out.println(error);
                            }
                        });
                Thread.sleep(1);
            }
        }
    }

    /** Commits every second transaction of one record, and aborts the others. */
    static void commitAndAbort(String servers, String topic, String id, int count) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("transactional.id", id);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            for (int number = 0; number < count; number++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, Integer.toString(number)));
                if (number % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
        }
    }
}
