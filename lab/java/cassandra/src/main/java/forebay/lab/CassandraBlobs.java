package forebay.lab;

import com.datastax.oss.driver.api.core.CqlSession;
import com.datastax.oss.driver.api.core.DefaultConsistencyLevel;
import com.datastax.oss.driver.api.core.config.DefaultDriverOption;
import com.datastax.oss.driver.api.core.config.DriverConfigLoader;
import com.datastax.oss.driver.api.core.cql.BatchStatement;
import com.datastax.oss.driver.api.core.cql.BatchStatementBuilder;
import com.datastax.oss.driver.api.core.cql.BatchType;
import com.datastax.oss.driver.api.core.cql.PreparedStatement;
import com.datastax.oss.driver.api.core.cql.Row;
import com.datastax.oss.driver.api.core.cql.SimpleStatement;
import com.datastax.oss.driver.api.core.cql.Statement;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnector;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/**
 * Blobs in Cassandra: {@code hosts=ADDRESS,... port=N jmx=PORT,...}. A point is a table in a keyspace of its own, a
 * connection one of the driver's pool, a batch an unlogged batch to one partition, all of which take turns. Consistency
 * is Cassandra's: ANY, ONE, TWO, ...
 */
public final class CassandraBlobs implements BlobStore {
    private static final String SERVICE = "org.apache.cassandra.db:type=StorageService";
    private static final int PAGE_BYTES = 1 << 20;
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private final List<InetSocketAddress> hosts;
    private final List<Integer> managed;

    private CassandraBlobs(Options options) {
        int port = options.small("port");
        hosts = Arrays.stream(options.text("hosts").split(","))
                .map(host -> new InetSocketAddress(host, port))
                .toList();
        managed = Arrays.stream(options.text("jmx").split(",")).map(Integer::valueOf).toList();
    }

    public static void main(String[] args) {
        BlobLoad.run(args, CassandraBlobs::new);
    }

    @Override
    public Place make(Point point) {
        CqlSession client = connect(point.connections());
        String copies = "{'class': 'SimpleStrategy', 'replication_factor': " + point.replicas() + "}";
        client.execute(slow("CREATE KEYSPACE " + point.name() + " WITH replication = " + copies));
        client.execute(slow("CREATE TABLE " + point.name()
                + ".blobs (part int, number bigint, content blob, PRIMARY KEY (part, number))"));
        return new Table(client, point);
    }

    private static Statement<?> slow(String text) {
        return SimpleStatement.newInstance(text).setTimeout(PATIENCE);
    }

    private CqlSession connect(int connections) {
        DriverConfigLoader settings = DriverConfigLoader.programmaticBuilder()
                .withInt(DefaultDriverOption.CONNECTION_POOL_LOCAL_SIZE, connections)
                .withDuration(DefaultDriverOption.REQUEST_TIMEOUT, PATIENCE)
                .withDuration(DefaultDriverOption.CONNECTION_INIT_QUERY_TIMEOUT, PATIENCE)
                .withDuration(DefaultDriverOption.CONTROL_CONNECTION_TIMEOUT, PATIENCE)
                .build();
        return CqlSession.builder()
                .addContactPoints(hosts)
                .withLocalDatacenter("datacenter1")
                .withConfigLoader(settings)
                .build();
    }

    private final class Table implements Place {
        private final CqlSession client;
        private final Point point;
        private final PreparedStatement insert;

        Table(CqlSession client, Point point) {
            this.client = client;
            this.point = point;
            insert = client.prepare("INSERT INTO " + point.name() + ".blobs (part, number, content) VALUES (?, ?, ?)");
        }

        @Override
        public Writer writer(int which) {
            int[] turn = {which};
            return (first, count) -> client.execute(batch(turn[0]++ % point.partitions(), first, count));
        }

        private BatchStatement batch(int part, long first, int count) {
            BatchStatementBuilder made = BatchStatement.builder(BatchType.UNLOGGED);
            for (long at = first; at < first + count; at++) {
                made.addStatement(insert.bind(part, at, ByteBuffer.wrap(Blob.of(at, point.size()))));
            }
            return made.setConsistencyLevel(DefaultConsistencyLevel.valueOf(point.consistency())).build();
        }

        @Override
        public void flush() throws Exception {
            for (int port : managed) {
                JMXServiceURL url = new JMXServiceURL("service:jmx:rmi:///jndi/rmi://127.0.0.1:" + port + "/jmxrmi");
                try (JMXConnector connector = JMXConnectorFactory.connect(url)) {
                    MBeanServerConnection node = connector.getMBeanServerConnection();
                    Object[] what = {point.name(), new String[0]};
                    String[] types = {String.class.getName(), String[].class.getName()};
                    node.invoke(new ObjectName(SERVICE), "forceKeyspaceFlush", what, types);
                }
            }
        }

        @Override
        public void read(Taker taker) throws Wrong {
            String one = "SELECT content FROM " + point.name() + ".blobs WHERE part = ?";
            int page = Math.max(1, PAGE_BYTES / point.size());
            for (int part = 0; part < point.partitions(); part++) {
                for (Row row : client.execute(SimpleStatement.newInstance(one, part).setPageSize(page))) {
                    ByteBuffer content = row.getByteBuffer("content");
                    byte[] found = new byte[content.remaining()];
                    content.get(found);
                    if (!taker.take(found)) {
                        return;
                    }
                }
            }
        }

        @Override
        public void drop() {
            client.execute(slow("DROP KEYSPACE " + point.name()));
            client.close();
        }
    }
}
