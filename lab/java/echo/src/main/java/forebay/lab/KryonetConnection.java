package forebay.lab;

import com.esotericsoftware.kryonet.Client;
import com.esotericsoftware.kryonet.Listener;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ProtocolException;
import java.util.Arrays;

/**
 * Messages to a server that sends them back. Every echo is compared with what was sent.
 *
 * <p>A reply comes in a thread of Kryonet. If the next message is due by then it goes out from there, as users of the
 * library do it; if not, the thread of {@link #run} waits for its time. The lock of this object is held by whoever of
 * the two has the lane.
 */
final class KryonetConnection extends Listener implements Connection {
    private static final int PATIENCE_MS = 10_000;
    private static final int SPARE = 256;

    private final Client client;
    private final Message message;
    private final KryonetMessage out = new KryonetMessage();
    private Lane lane;
    private long number;
    private boolean underWay;
    private Exception failed;

    KryonetConnection(int port, int which, int size) throws IOException {
        message = new Message(which, Math.max(size, Long.BYTES));
        client = new Client(4 * (size + SPARE), size + SPARE);
        KryonetMessage.register(client);
        client.addListener(this);
        client.start();
        client.connect(PATIENCE_MS, InetAddress.getLoopbackAddress(), port);
    }

    @Override
    public void run(Lane given) throws Exception {
        while (true) {
            synchronized (this) {
                lane = given;
                while (underWay && failed == null) {
                    wait();
                }
                if (failed != null) {
                    throw failed;
                }
                if (lane.done()) {
                    return;
                }
            }
            Connection.waitUntil(given.due());
            transmit();
        }
    }

    @Override
    public long verify(long newest) {
        return Math.min(newest, number);
    }

    private synchronized void transmit() {
        out.content = message.of(number);
        underWay = true;
        lane.sent(System.nanoTime());
        client.sendTCP(out);
    }

    @Override
    public synchronized void received(com.esotericsoftware.kryonet.Connection from, Object object) {
        if (!(object instanceof KryonetMessage echo)) {
            return;
        }
        long now = System.nanoTime();
        if (!Arrays.equals(echo.content, out.content)) {
            fail(new Wrong("the echo of message " + number + " is not what was sent"));
            return;
        }
        number++;
        lane.acknowledged(now);
        if (lane.due() <= now && !lane.done()) {
            transmit();
        } else {
            underWay = false;
            notifyAll();
        }
    }

    @Override
    public synchronized void disconnected(com.esotericsoftware.kryonet.Connection from) {
        fail(new ProtocolException("the server has hung up"));
    }

    private void fail(Exception error) {
        failed = error;
        notifyAll();
    }
}
