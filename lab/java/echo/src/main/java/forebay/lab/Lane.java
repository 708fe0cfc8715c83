package forebay.lab;

import java.util.SplittableRandom;
import org.HdrHistogram.Histogram;

/**
 * When the messages of one connection are due, and how long each of them took. At most one is under way.
 *
 * <p>Closed loop: a message is due when the one before it was acknowledged. Offered load: messages are due at random
 * times (a Poisson process) that do not ask whether the one before is back. One that was due while its predecessor was
 * under way counts from when it was due: a slow server does not get fewer questions, its queue is part of the latency.
 * One that found its connection idle counts from when it was sent: a client that is woken 50 us late is not the
 * server's doing.
 *
 * <p>Not for several threads at once.
 */
final class Lane {
    private final double gapNs;
    private final long begin;
    private final long from;
    private final long until;
    private final SplittableRandom random;
    private final Histogram latencies = new Histogram(3);
    private double next;
    private long due;
    private long counted;
    private long answered;
    private boolean late;

    /**
     * @param seed of the times
     * @param gapNs mean time between messages; 0: closed loop
     * @param begin time of the first message (of {@link System#nanoTime}, as all times)
     * @param from begin of what counts; before is warm-up
     * @param until end of what counts
     */
    Lane(long seed, double gapNs, long begin, long from, long until) {
        this.gapNs = gapNs;
        this.begin = begin;
        this.from = from;
        this.until = until;
        random = new SplittableRandom(seed);
        next = gapNs * -Math.log1p(-random.nextDouble());
        due = begin + (long) next;
    }

    /** When the next message is to be sent. */
    long due() {
        return due;
    }

    /** All that were due were acknowledged. */
    boolean done() {
        return due >= until;
    }

    /** The message that is due goes out now. */
    void sent(long now) {
        counted = late ? due : now;
    }

    /** It was acknowledged. */
    void acknowledged(long now) {
        if (due >= from) {
            latencies.recordValue(Math.max(0, now - counted));
        }
        if (now >= from && now < until) {
            answered++;
        }
        if (gapNs == 0) {
            due = now;
        } else {
            next += gapNs * -Math.log1p(-random.nextDouble());
            due = begin + (long) next;
            late = due <= now;
        }
    }

    /** How long messages took that were due in the time that counts, in nanoseconds. */
    Histogram latencies() {
        return latencies;
    }

    /** How many were acknowledged in the time that counts. */
    long answered() {
        return answered;
    }
}
