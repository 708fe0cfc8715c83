package forebay.lab;

import java.nio.ByteBuffer;
import java.util.SplittableRandom;

/**
 * Contents of messages: their number in front, then bytes that are the connection's own. No two of a connection are
 * alike.
 */
final class Message {
    private final byte[] body;

    /** @param bytes length of each message, at least 8 */
    Message(int connection, int bytes) {
        body = new byte[bytes];
        new SplittableRandom(connection).nextBytes(body);
    }

    /** Puts the message with this number where the buffer stands. */
    void put(long number, ByteBuffer out) {
        out.putLong(number).put(body, Long.BYTES, body.length - Long.BYTES);
    }

    /** The message with this number. */
    byte[] of(long number) {
        byte[] made = new byte[body.length];
        put(number, ByteBuffer.wrap(made));
        return made;
    }
}
