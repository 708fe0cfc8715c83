package forebay.lab;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Blobs in Kafka: {@code servers=HOST:PORT,...}. A point is a topic, a connection a producer, a batch one request to
 * one partition, all of which take turns.
 *
 * <p>Consistency: {@code 1} or {@code all}, who must have a batch before it is acknowledged; {@code sync}: all, and
 * each of them has it durably (the brokers otherwise leave that to the kernel).
 */
public final class KafkaBlobs implements BlobStore {
    /** More than the largest batch. */
    private static final int LARGEST_BYTES = 32 << 20;
    private static final int RECORD_SPARE = 64;
    private static final int PATIENCE_S = 60;

    private final String servers;
    private final Admin admin;

    private KafkaBlobs(String servers) {
        this.servers = servers;
        admin = Admin.create(Map.of("bootstrap.servers", servers));
    }

    public static void main(String[] args) {
        BlobLoad.run(args, options -> new KafkaBlobs(options.text("servers")));
    }

    @Override
    public Place make(Point point) throws Exception {
        Map<String, String> settings = new HashMap<>();
        settings.put("max.message.bytes", Integer.toString(LARGEST_BYTES));
        settings.put("file.delete.delay.ms", "0");
        if (point.consistency().equals("sync")) {
            settings.put("flush.messages", "1");
        }
        NewTopic topic = new NewTopic(point.name(), point.partitions(), (short) point.replicas()).configs(settings);
        admin.createTopics(List.of(topic)).all().get();
        return new Topic(point);
    }

    private final class Topic implements Place {
        private final Point point;

        Topic(Point point) {
            this.point = point;
        }

        @Override
        public Writer writer(int which) {
            Producer made = new Producer(servers, point, which);
            made.learn();
            return made;
        }

        @Override
        public void flush() {
            // What brokers have acknowledged is in their files.
        }

        @Override
        public void read(Taker taker) throws Wrong {
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(consuming())) {
                List<TopicPartition> all = new ArrayList<>();
                for (int partition = 0; partition < point.partitions(); partition++) {
                    all.add(new TopicPartition(point.name(), partition));
                }
                consumer.assign(all);
                consumer.seekToBeginning(all);
                Map<TopicPartition, Long> ends = consumer.endOffsets(all);
                while (all.stream().anyMatch(one -> consumer.position(one) < ends.get(one))) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(PATIENCE_S))) {
                        if (!taker.take(record.value())) {
                            return;
                        }
                    }
                }
            }
        }

        private Map<String, Object> consuming() {
            return Map.of(
                    "bootstrap.servers", servers,
                    "key.deserializer", ByteArrayDeserializer.class,
                    "value.deserializer", ByteArrayDeserializer.class,
                    "enable.auto.commit", false);
        }

        @Override
        public void drop() throws Exception {
            admin.deleteTopics(List.of(point.name())).all().get();
        }
    }

    private static final class Producer implements Writer {
        private final KafkaProducer<byte[], byte[]> producer;
        private final Point point;
        private int turn;

        Producer(String servers, Point point, int which) {
            this.point = point;
            turn = which;
            int batch = Math.min(LARGEST_BYTES / 2, point.batch() * (point.size() + RECORD_SPARE) + RECORD_SPARE);
            Map<String, Object> settings = new HashMap<>();
            settings.put("bootstrap.servers", servers);
            settings.put("key.serializer", ByteArraySerializer.class);
            settings.put("value.serializer", ByteArraySerializer.class);
            settings.put("acks", point.consistency().equals("1") ? "1" : "all");
            settings.put("enable.idempotence", !point.consistency().equals("1"));
            settings.put("batch.size", batch);
            // A batch goes out when it is complete: `flush` says so.
            settings.put("linger.ms", PATIENCE_S * 1000 / 2);
            settings.put("max.request.size", LARGEST_BYTES);
            settings.put("buffer.memory", 2L * LARGEST_BYTES);
            producer = new KafkaProducer<>(settings);
        }

        /** Asks who has the partitions, before the time is taken. */
        void learn() {
            producer.partitionsFor(point.name());
        }

        @Override
        public void write(long first, int count) throws Exception {
            int partition = turn++ % point.partitions();
            List<Future<RecordMetadata>> sent = new ArrayList<>(count);
            for (long at = first; at < first + count; at++) {
                sent.add(producer.send(new ProducerRecord<>(point.name(), partition, null, Blob.of(at, point.size()))));
            }
            producer.flush();
            for (Future<RecordMetadata> one : sent) {
                one.get();
            }
        }

        @Override
        public void close() {
            producer.close();
        }
    }
}
