package forebay.lab;

/** Where blobs go. */
public interface BlobStore {
    /** What is measured: sizes in bytes, a batch in blobs. {@code consistency} means what the store calls so. */
    record Point(String name, int size, int batch, int connections, int partitions, int replicas, String consistency) {
        static Point of(Options asked) {
            return new Point(
                    asked.text("name"),
                    asked.small("size"),
                    asked.small("batch"),
                    asked.small("connections"),
                    asked.small("partitions"),
                    asked.small("replicas"),
                    asked.text("consistency"));
        }
    }

    /** Makes a new, empty place for the blobs of a point. */
    Place make(Point point) throws Exception;

    /** A topic, a table, a folder. */
    interface Place {
        /** A writer for one thread, with a connection of its own where the store has connections. */
        Writer writer(int which) throws Exception;

        /** Everything that was acknowledged goes from the store's memory to its files. */
        void flush() throws Exception;

        /** Reads blobs until there are no more, or the taker wants no more. */
        void read(Taker taker) throws Exception;

        /** Deletes it with everything in it. */
        void drop() throws Exception;
    }

    /** Writes batches. */
    interface Writer {
        /** Writes one batch of the blobs with these numbers; returns when it is acknowledged. */
        void write(long first, int count) throws Exception;

        /** Lets go of its connection or file. */
        default void close() throws Exception {}
    }

    /** Is given what was read. */
    interface Taker {
        /** Takes a blob; false: enough. */
        boolean take(byte[] found) throws Wrong;
    }
}
