package forebay.lab;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Loads blobs into a store and reads them back. Lines:
 *
 * <ul>
 *   <li>{@code do=load name= size= batch= connections= partitions= replicas= consistency= blobs= seconds=}: writes so
 *       many blobs, or for so long, whatever ends first
 *   <li>{@code do=flush}: what the store has in memory goes to its files
 *   <li>{@code do=verify bytes=N}: reads back N bytes of them, or all if it is 0, and compares every one
 *   <li>{@code do=drop}: deletes them
 * </ul>
 */
public final class BlobLoad implements Dialogue.Work {
    private static final double SECOND_NS = 1e9;

    private final BlobStore store;
    private BlobStore.Point point;
    private BlobStore.Place place;
    private long written;

    private BlobLoad(BlobStore store) {
        this.store = store;
    }

    /** Opens a store. */
    public interface Opener {
        BlobStore open(Options options) throws Exception;
    }

    /** Runs a loader to its end. */
    public static void run(String[] args, Opener opener) {
        Dialogue.hold(() -> {
            BlobLoad load = new BlobLoad(opener.open(new Options(List.of(args))));
            return new Dialogue.Talk(new Answer(), load);
        });
    }

    @Override
    public Answer answer(Options asked) throws Exception {
        switch (asked.text("do")) {
            case "load":
                return tryToLoad(asked);
            case "flush":
                place.flush();
                return new Answer();
            case "verify":
                return verify(asked.number("bytes"));
            case "drop":
                place.drop();
                return new Answer();
            default:
                throw new IllegalArgumentException("do=" + asked.text("do") + " is not known");
        }
    }

    /** That a store cannot do it, in time or at all, is a result. */
    private Answer tryToLoad(Options asked) throws Exception {
        point = BlobStore.Point.of(asked);
        place = store.make(point);
        try {
            return load(asked);
        } catch (Wrong wrong) {
            throw wrong;
        } catch (Exception error) {
            error.printStackTrace();
            return new Answer().put("failed", error.toString());
        }
    }

    private Answer load(Options asked) throws Exception {
        long most = asked.number("blobs");
        List<BlobStore.Writer> writers = new ArrayList<>();
        for (int which = 0; which < point.connections(); which++) {
            writers.add(place.writer(which));
        }
        AtomicLong next = new AtomicLong();
        List<Long> batchNs = new ArrayList<>();
        long begin = System.nanoTime();
        long until = begin + (long) (asked.real("seconds") * SECOND_NS);
        ExecutorService threads = Executors.newFixedThreadPool(writers.size());
        List<Future<List<Long>>> running = new ArrayList<>();
        for (BlobStore.Writer writer : writers) {
            running.add(threads.submit(() -> write(writer, next, most, until)));
        }
        threads.shutdown();
        double seconds;
        try {
            for (Future<List<Long>> one : running) {
                batchNs.addAll(result(one));
            }
        } finally {
            threads.awaitTermination(1, TimeUnit.HOURS);
            seconds = (System.nanoTime() - begin) / SECOND_NS;
            for (BlobStore.Writer writer : writers) {
                writer.close();
            }
        }
        written = Math.min(next.get(), most);
        return summary(batchNs, seconds);
    }

    /** One thread: batches until all numbers are given out, or the time is over. The first batch is always written. */
    private List<Long> write(BlobStore.Writer writer, AtomicLong next, long most, long until) throws Exception {
        List<Long> batchNs = new ArrayList<>();
        do {
            long first = next.getAndAdd(point.batch());
            if (first >= most) {
                break;
            }
            long sent = System.nanoTime();
            writer.write(first, (int) Math.min(point.batch(), most - first));
            batchNs.add(System.nanoTime() - sent);
        } while (System.nanoTime() < until);
        return batchNs;
    }

    private static List<Long> result(Future<List<Long>> one) throws Exception {
        try {
            return one.get();
        } catch (ExecutionException error) {
            throw error.getCause() instanceof Exception cause ? cause : error;
        }
    }

    private Answer summary(List<Long> batchNs, double seconds) {
        batchNs.sort(null);
        return new Answer()
                .put("blobs", written)
                .put("seconds", seconds)
                .put("batch_p50_ms", percentile(batchNs, 50))
                .put("batch_p99_ms", percentile(batchNs, 99));
    }

    /** Of sorted values: the smallest that so many percent do not exceed. */
    private static double percentile(List<Long> sortedNs, int percent) {
        int rank = (int) Math.ceil(sortedNs.size() * percent / 100.0);
        return sortedNs.get(Math.max(0, rank - 1)) / 1e6;
    }

    private Answer verify(long bytes) throws Exception {
        BitSet seen = new BitSet();
        long enough = bytes == 0 ? Long.MAX_VALUE : Math.max(1, bytes / point.size());
        place.read(found -> {
            long number = Blob.check(found, point.size());
            if (number < 0 || number >= written) {
                throw new Wrong("blob " + number + " was never written: there are " + written);
            }
            if (seen.get((int) number)) {
                throw new Wrong("blob " + number + " came back twice");
            }
            seen.set((int) number);
            return seen.cardinality() < enough;
        });
        long expected = Math.min(enough, written);
        if (seen.cardinality() < expected) {
            throw new Wrong(seen.cardinality() + " blobs came back of " + expected + "; the first that is missing is "
                    + seen.nextClearBit(0));
        }
        return new Answer().put("verified", (long) seen.cardinality());
    }
}
