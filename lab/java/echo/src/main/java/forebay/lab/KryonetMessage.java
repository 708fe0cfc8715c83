package forebay.lab;

import com.esotericsoftware.kryonet.EndPoint;

/** What Kryonet sends to and fro. */
public final class KryonetMessage {
    /** The message, byte for byte. */
    public byte[] content;

    /** Tells one side of a connection how to serialise it; both sides in the same order. */
    static void register(EndPoint side) {
        side.getKryo().register(byte[].class);
        side.getKryo().register(KryonetMessage.class);
    }
}
