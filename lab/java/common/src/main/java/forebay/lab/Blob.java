package forebay.lab;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.SplittableRandom;

/**
 * What a recorded message looks like: its number, then bytes that only this number has, then, from the middle on, what
 * all messages of an application share. A store that compresses makes about half of it.
 */
public final class Blob {
    private static final byte[] COMMON =
            "8=FIX.4.2|35=D|49=SENDER|56=TARGET|54=1|40=2|59=0|".getBytes(StandardCharsets.US_ASCII);

    private Blob() {}

    /** @param size in bytes, at least 8 */
    public static byte[] of(long number, int size) {
        byte[] made = new byte[size];
        byte[] own = new byte[Math.max(Long.BYTES, size / 2)];
        new SplittableRandom(number).nextBytes(own);
        System.arraycopy(own, 0, made, 0, own.length);
        ByteBuffer.wrap(made).putLong(number);
        for (int at = own.length; at < size; at++) {
            made[at] = COMMON[at % COMMON.length];
        }
        return made;
    }

    /** The number of a blob that was read back, all of which is compared. */
    public static long check(byte[] found, int size) throws Wrong {
        if (found.length != size) {
            throw new Wrong("a blob of " + size + " bytes came back with " + found.length);
        }
        long number = ByteBuffer.wrap(found).getLong();
        if (!Arrays.equals(found, of(number, size))) {
            throw new Wrong("blob " + number + " of " + size + " bytes is not what was written");
        }
        return number;
    }
}
