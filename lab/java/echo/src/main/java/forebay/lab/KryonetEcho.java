package forebay.lab;

import com.esotericsoftware.kryonet.Connection;
import com.esotericsoftware.kryonet.Listener;
import com.esotericsoftware.kryonet.Server;
import com.esotericsoftware.minlog.Log;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.List;

/**
 * The echo server: {@code ports=N size=BYTES}. Its first line says on which ports of the loopback interface it listens.
 * A server of Kryonet has one thread; with several ports there are as many servers.
 */
public final class KryonetEcho {
    private static final int SPARE = 256;

    private KryonetEcho() {}

    public static void main(String[] args) {
        Log.WARN();
        Dialogue.hold(() -> {
            Options options = new Options(List.of(args));
            List<String> ports = new ArrayList<>();
            for (int at = 0; at < options.small("ports"); at++) {
                ports.add(Integer.toString(listen(options.small("size"))));
            }
            Answer greeting = new Answer().put("ports", String.join(",", ports));
            return new Dialogue.Talk(greeting, asked -> new Answer());
        });
    }

    private static int listen(int size) throws IOException {
        Server server = new Server(4 * (size + SPARE), size + SPARE);
        KryonetMessage.register(server);
        server.addListener(new Listener() {
            @Override
            public void received(Connection from, Object message) {
                if (message instanceof KryonetMessage) {
                    from.sendTCP(message);
                }
            }
        });
        server.start();
        int port = free();
        server.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), null);
        return port;
    }

    /** Kryonet does not tell which port it was given, so one that is free is looked for. */
    private static int free() throws IOException {
        try (ServerSocket trial = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return trial.getLocalPort();
        }
    }
}
