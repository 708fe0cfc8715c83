package forebay.lab;

import java.io.EOFException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ProtocolException;
import java.net.SocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Messages as writes to an NBD export: each is acknowledged when the server's reply is here.
 *
 * <p>Messages are rounded up to sectors. They go to the connection's own part of the export, one behind the other, and
 * begin again at its front when it is full. Protocol: NBD, fixed newstyle, NBD_OPT_GO, simple replies.
 */
final class NbdConnection implements Connection {
    static final int SECTOR = 512;
    private static final long GREETING = 0x4e42444d41474943L;
    private static final long HAVE_OPTION = 0x49484156454f5054L;
    private static final long OPTION_REPLY = 0x3e889045565a9L;
    private static final int REQUEST = 0x25609513;
    private static final int SIMPLE_REPLY = 0x67446698;
    private static final int GO = 7;
    private static final int ACK = 1;
    private static final int INFO = 3;
    private static final short INFO_EXPORT = 0;
    private static final short CAN_FUA = 1 << 3;
    private static final short READ = 0;
    private static final short WRITE = 1;
    private static final short FUA = 1;
    private static final int REQUEST_BYTES = 28;
    private static final int REPLY_BYTES = 16;

    private final SocketChannel channel;
    private final Message message;
    private final int bytes;
    private final short flags;
    private final long base;
    private final long slots;
    private final ByteBuffer request;
    private final ByteBuffer reply;
    private long number;

    /**
     * @param export name of the export
     * @param which number of this connection
     * @param connections of how many
     * @param size of a message in bytes
     * @param fua every write is durable before its reply
     */
    NbdConnection(SocketAddress server, String export, int which, int connections, int size, boolean fua)
            throws IOException {
        channel = SocketChannel.open(server);
        if (server instanceof InetSocketAddress) {
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        }
        bytes = (Math.max(size, Long.BYTES) + SECTOR - 1) / SECTOR * SECTOR;
        message = new Message(which, bytes);
        request = ByteBuffer.allocateDirect(REQUEST_BYTES + bytes);
        reply = ByteBuffer.allocateDirect(REPLY_BYTES + bytes);
        Export found = handshake(export);
        if (fua && (found.flags & CAN_FUA) == 0) {
            throw new ProtocolException("the export has no FUA");
        }
        flags = fua ? FUA : 0;
        long part = found.size / connections / bytes * bytes;
        base = part * which;
        slots = part / bytes;
        if (slots == 0) {
            throw new ProtocolException("an export of " + found.size + " bytes is too small");
        }
    }

    private record Export(long size, short flags) {}

    private Export handshake(String name) throws IOException {
        ByteBuffer greeting = receive(ByteBuffer.allocate(18));
        if (greeting.getLong() != GREETING || greeting.getLong() != HAVE_OPTION) {
            throw new ProtocolException("not an NBD server of the newstyle");
        }
        byte[] called = name.getBytes(StandardCharsets.UTF_8);
        ByteBuffer go = ByteBuffer.allocate(4 + 16 + 6 + called.length);
        // Client flags: fixed newstyle, no zeroes.
        go.putInt(3).putLong(HAVE_OPTION).putInt(GO).putInt(6 + called.length).putInt(called.length).put(called);
        go.putShort((short) 0);
        send(go.flip());
        Export found = null;
        while (true) {
            ByteBuffer head = receive(ByteBuffer.allocate(20));
            long magic = head.getLong();
            head.getInt();
            int type = head.getInt();
            int length = head.getInt();
            if (magic != OPTION_REPLY || length < 0 || length > 1 << 16) {
                throw new ProtocolException("not a reply to an option");
            }
            ByteBuffer data = receive(ByteBuffer.allocate(length));
            if (type == ACK && found != null) {
                return found;
            } else if (type != INFO) {
                throw new ProtocolException("the server refuses export " + name + ": " + Integer.toHexString(type));
            } else if (length >= 12 && data.getShort() == INFO_EXPORT) {
                found = new Export(data.getLong(), data.getShort());
            }
        }
    }

    @Override
    public void run(Lane lane) throws IOException {
        while (!lane.done()) {
            Connection.waitUntil(lane.due());
            begin(WRITE, flags, number);
            message.put(number, request);
            lane.sent(System.nanoTime());
            send(request.flip());
            finish(number, 0);
            lane.acknowledged(System.nanoTime());
            number++;
        }
    }

    @Override
    public long verify(long newest) throws IOException, Wrong {
        long first = Math.max(0, number - Math.min(newest, slots));
        byte[] found = new byte[bytes];
        for (long at = first; at < number; at++) {
            begin(READ, (short) 0, at);
            send(request.flip());
            finish(at, bytes).get(found);
            if (!Arrays.equals(found, message.of(at))) {
                long byteAt = base + at % slots * bytes;
                throw new Wrong("message " + at + " at byte " + byteAt + " is not what was written");
            }
        }
        return number - first;
    }

    private void begin(short command, short with, long cookie) {
        request.clear().putInt(REQUEST).putShort(with).putShort(command).putLong(cookie);
        request.putLong(base + cookie % slots * bytes).putInt(bytes);
    }

    /** Waits for the reply; returns the data that comes with it. */
    private ByteBuffer finish(long cookie, int data) throws IOException {
        receive(reply.clear().limit(REPLY_BYTES + data));
        if (reply.getInt() != SIMPLE_REPLY) {
            throw new ProtocolException("not a simple reply");
        }
        int error = reply.getInt();
        if (error != 0) {
            throw new IOException("the server answers with error " + error);
        }
        if (reply.getLong() != cookie) {
            throw new ProtocolException("a reply to something else");
        }
        return reply;
    }

    private void send(ByteBuffer out) throws IOException {
        while (out.hasRemaining()) {
            channel.write(out);
        }
    }

    private ByteBuffer receive(ByteBuffer in) throws IOException {
        while (in.hasRemaining()) {
            if (channel.read(in) < 0) {
                throw new EOFException("the server has hung up");
            }
        }
        return in.flip();
    }
}
