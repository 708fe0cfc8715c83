package forebay.lab;

import java.util.concurrent.locks.LockSupport;

/** One connection to whatever acknowledges messages. */
interface Connection {
    /** Sends messages when they are due, until all are done. */
    void run(Lane lane) throws Exception;

    /**
     * Compares the newest messages with what the other side has; of one that sends messages back, all were compared
     * when they came.
     *
     * @return how many were compared
     */
    long verify(long newest) throws Exception;

    /** Waits until a time of {@link System#nanoTime}; returns at once if it is over. */
    static void waitUntil(long time) {
        for (long left = time - System.nanoTime(); left > 0; left = time - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }
}
