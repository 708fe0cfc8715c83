package forebay.lab;

import com.esotericsoftware.minlog.Log;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.UnixDomainSocketAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.HdrHistogram.Histogram;

/**
 * The client: {@code target=unix:PATH|tcp:PORT|kryonet:PORT,... export=NAME connections=N size=BYTES fua=0|1}.
 *
 * <p>A line {@code rate=R warm=S seconds=S} measures: R messages a second on all connections together, or as many as
 * they acknowledge if it is 0. A line {@code verify=N} compares the newest N messages of each connection with what the
 * server has.
 */
public final class Load {
    private static final double SECOND_NS = 1e9;
    private static final long HEAD_START_NS = 20_000_000;

    private final List<Connection> connections;
    private final ExecutorService threads;
    private long seed;

    private Load(List<Connection> connections) {
        this.connections = connections;
        threads = Executors.newFixedThreadPool(connections.size());
    }

    public static void main(String[] args) {
        Log.WARN();
        Dialogue.hold(() -> {
            Load load = new Load(connect(new Options(List.of(args))));
            return new Dialogue.Talk(new Answer().put("connections", (long) load.connections.size()), load::answer);
        });
    }

    private static List<Connection> connect(Options options) throws IOException {
        String[] target = options.text("target").split(":", 2);
        int count = options.small("connections");
        int size = options.small("size");
        boolean fua = options.text("fua", "0").equals("1");
        List<Connection> made = new ArrayList<>();
        for (int which = 0; which < count; which++) {
            made.add(switch (target[0]) {
                case "kryonet" -> {
                    String[] ports = target[1].split(",");
                    yield new KryonetConnection(Integer.parseInt(ports[which % ports.length]), which, size);
                }
                case "unix", "tcp" -> {
                    String export = options.text("export");
                    yield new NbdConnection(address(target), export, which, count, size, fua);
                }
                default -> throw new IllegalArgumentException("target=" + target[0] + " is not known");
            });
        }
        return made;
    }

    private static SocketAddress address(String[] target) {
        return target[0].equals("unix")
                ? UnixDomainSocketAddress.of(target[1])
                : new InetSocketAddress(InetAddress.getLoopbackAddress(), Integer.parseInt(target[1]));
    }

    private Answer answer(Options asked) throws Exception {
        if (asked.has("verify")) {
            return verify(asked.number("verify"));
        }
        return measure(asked.real("rate"), asked.real("warm"), asked.real("seconds"));
    }

    private Answer measure(double rate, double warm, double seconds) throws Exception {
        long begin = System.nanoTime() + HEAD_START_NS;
        long from = begin + (long) (warm * SECOND_NS);
        long until = from + (long) (seconds * SECOND_NS);
        double gapNs = rate > 0 ? connections.size() * SECOND_NS / rate : 0;
        List<Lane> lanes = new ArrayList<>();
        List<Future<?>> running = new ArrayList<>();
        for (Connection connection : connections) {
            Lane lane = new Lane(seed++, gapNs, begin, from, until);
            lanes.add(lane);
            running.add(threads.submit(() -> {
                connection.run(lane);
                return null;
            }));
        }
        await(running);
        return summary(lanes, seconds).put("over_s", Math.max(0, System.nanoTime() - until) / SECOND_NS);
    }

    private static void await(List<Future<?>> running) throws Exception {
        for (Future<?> one : running) {
            try {
                one.get();
            } catch (ExecutionException error) {
                throw error.getCause() instanceof Exception cause ? cause : error;
            }
        }
    }

    private static Answer summary(List<Lane> lanes, double seconds) {
        Histogram all = new Histogram(3);
        long answered = 0;
        for (Lane lane : lanes) {
            all.add(lane.latencies());
            answered += lane.answered();
        }
        boolean any = all.getTotalCount() > 0;
        return new Answer()
                .put("messages", all.getTotalCount())
                .put("per_s", answered / seconds)
                .put("mean_us", any ? all.getMean() / 1e3 : Double.NaN)
                .put("p50_us", any ? all.getValueAtPercentile(50) / 1e3 : Double.NaN)
                .put("p99_us", any ? all.getValueAtPercentile(99) / 1e3 : Double.NaN)
                .put("max_us", any ? all.getMaxValue() / 1e3 : Double.NaN);
    }

    private Answer verify(long newest) throws Exception {
        long compared = 0;
        for (Connection connection : connections) {
            compared += connection.verify(newest);
        }
        return new Answer().put("verified", compared);
    }
}
