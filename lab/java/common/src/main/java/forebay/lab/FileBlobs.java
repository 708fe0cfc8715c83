package forebay.lab;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.stream.Stream;
import java.util.zip.CRC32C;

/**
 * Blobs in plain files: {@code folder=PATH}. Each writer appends to segments of its own; a record is length, CRC-32C
 * and content.
 *
 * <p>Consistency {@code sync}: a batch is acknowledged when it is durable; {@code none}: when it was written.
 * Partitions and replicas do not exist here.
 */
public final class FileBlobs implements BlobStore {
    private static final long SEGMENT_BYTES = 64 << 20;
    private static final int HEAD_BYTES = 8;
    private static final int BUFFER_BYTES = 1 << 20;

    private final Path folder;

    private FileBlobs(Path folder) {
        this.folder = folder;
    }

    public static void main(String[] args) {
        BlobLoad.run(args, options -> new FileBlobs(Path.of(options.text("folder"))));
    }

    @Override
    public Place make(Point point) throws IOException {
        return new Folder(Files.createDirectory(folder.resolve(point.name())), point);
    }

    private record Folder(Path path, Point point) implements Place {
        @Override
        public Writer writer(int which) {
            return new Segments(path, which, point);
        }

        @Override
        public void flush() {
            // Nothing is kept in memory.
        }

        @Override
        public void read(Taker taker) throws IOException, Wrong {
            for (Path segment : segments()) {
                InputStream file = Files.newInputStream(segment);
                try (DataInputStream in = new DataInputStream(new BufferedInputStream(file, BUFFER_BYTES))) {
                    long left = Files.size(segment);
                    while (left > 0) {
                        byte[] content = record(in, left);
                        left -= HEAD_BYTES + content.length;
                        if (!taker.take(content)) {
                            return;
                        }
                    }
                }
            }
        }

        private static byte[] record(DataInputStream in, long left) throws IOException, Wrong {
            int length = in.readInt();
            int sum = in.readInt();
            if (length < 0 || length > left - HEAD_BYTES) {
                throw new Wrong("a record of " + length + " bytes, with " + left + " bytes left in its segment");
            }
            byte[] content = in.readNBytes(length);
            if (content.length < length) {
                throw new EOFException("a segment is shorter than its size");
            }
            if (sum(content) != sum) {
                throw new Wrong("the checksum of a record is not right");
            }
            return content;
        }

        private List<Path> segments() throws IOException {
            try (Stream<Path> found = Files.list(path)) {
                return found.sorted().toList();
            }
        }

        @Override
        public void drop() throws IOException {
            for (Path segment : segments()) {
                Files.delete(segment);
            }
            Files.delete(path);
        }
    }

    private static int sum(byte[] content) {
        CRC32C made = new CRC32C();
        made.update(content);
        return (int) made.getValue();
    }

    /** One writer's files. */
    private static final class Segments implements Writer {
        private final Path folder;
        private final int which;
        private final Point point;
        private final ByteBuffer batch;
        private final boolean sync;
        private FileChannel file;
        private int number;

        Segments(Path folder, int which, Point point) {
            this.folder = folder;
            this.which = which;
            this.point = point;
            batch = ByteBuffer.allocateDirect(point.batch() * (HEAD_BYTES + point.size()));
            sync = switch (point.consistency()) {
                case "sync" -> true;
                case "none" -> false;
                default -> throw new IllegalArgumentException("consistency=" + point.consistency());
            };
        }

        @Override
        public void write(long first, int count) throws IOException {
            if (file == null || file.position() >= SEGMENT_BYTES) {
                close();
                Path path = folder.resolve(String.format("%03d-%06d", which, number++));
                file = FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
            }
            batch.clear();
            for (long at = first; at < first + count; at++) {
                byte[] content = Blob.of(at, point.size());
                batch.putInt(content.length).putInt(sum(content)).put(content);
            }
            batch.flip();
            while (batch.hasRemaining()) {
                file.write(batch);
            }
            if (sync) {
                file.force(false);
            }
        }

        @Override
        public void close() throws IOException {
            if (file != null) {
                file.close();
            }
        }
    }
}
