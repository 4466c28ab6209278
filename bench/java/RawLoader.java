import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Iterator;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A load generator that is not the bottleneck: one thread, one selector, one request in flight on each connection.
 *
 * <p>It sends the same frame again and again and only counts what comes back, so that what is measured is the broker.
 *
 * <pre>
 *   java RawLoader.java request PORT FRAME_FILE CONNECTIONS WARMUP_S SECONDS
 *   java RawLoader.java connect PORT FRAME_FILE AT_A_TIME   WARMUP_S SECONDS
 * </pre>
 *
 * For each line on its standard input it prints how many requests were answered so far. FRAME_FILE holds a whole request frame, length prefix included. `connect` opens a connection, sends the frame, reads the
 * answer and closes. Prints one JSON object.
 */
public final class RawLoader {
    private static final int LARGEST_SAMPLE_COUNT = 8_000_000;

    private final int port;
    private final ByteBuffer frame;
    private final boolean reconnect;
    private final Selector selector = Selector.open();
    private final ByteBuffer scratch = ByteBuffer.allocateDirect(1 << 20);
    private final int[] latencyUs = new int[LARGEST_SAMPLE_COUNT];
    private int samples;
    private long requests;
    private long bytesIn;
    private boolean counting;
    private final AtomicLong answered = new AtomicLong();

    private RawLoader(int port, byte[] frame, boolean reconnect) throws IOException {
        this.port = port;
        this.frame = ByteBuffer.allocateDirect(frame.length);
        this.frame.put(frame).flip();
        this.reconnect = reconnect;
    }

    /** What is known of one connection: how much of the request is sent and how much of the answer is still to come. */
    private final class Connection {
        final ByteBuffer out = frame.duplicate();
        final byte[] prefix = new byte[4];
        int prefixBytes;
        long answerLeft;
        long sentNs;
    }

    public static void main(String[] args) throws IOException {
        boolean reconnect = args[0].equals("connect");
        byte[] frame = Files.readAllBytes(Path.of(args[2]));
        RawLoader loader = new RawLoader(Integer.parseInt(args[1]), frame, reconnect);
        Thread counter = new Thread(loader::tellCounts);
        counter.setDaemon(true);
        counter.start();
        loader.run(Integer.parseInt(args[3]), Double.parseDouble(args[4]), Double.parseDouble(args[5]));
    }

    private void run(int connections, double warmupS, double seconds) throws IOException {
        for (int i = 0; i < connections; i++) {
            open();
        }
        loopUntil(System.nanoTime() + (long) (warmupS * 1e9));
        counting = true;
        long begun = System.nanoTime();
        System.err.println("counting");
        loopUntil(begun + (long) (seconds * 1e9));
        report((System.nanoTime() - begun) / 1e9);
    }

    private void tellCounts() {
        try (BufferedReader in = new BufferedReader(new InputStreamReader(System.in))) {
            while (in.readLine() != null) {
                System.out.println(answered.get());
            }
        } catch (IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }

    private void open() throws IOException {
        SocketChannel channel = SocketChannel.open();
        channel.configureBlocking(false);
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        Connection connection = new Connection();
        connection.sentNs = System.nanoTime();
        if (channel.connect(new InetSocketAddress("127.0.0.1", port))) {
            send(channel, channel.register(selector, SelectionKey.OP_READ, connection), connection);
        } else {
            channel.register(selector, SelectionKey.OP_CONNECT, connection);
        }
    }

    private void loopUntil(long endNs) throws IOException {
        while (System.nanoTime() < endNs) {
            selector.select(100);
            Iterator<SelectionKey> keys = selector.selectedKeys().iterator();
            while (keys.hasNext()) {
                SelectionKey key = keys.next();
                keys.remove();
                handle(key);
            }
        }
    }

    private void handle(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        Connection connection = (Connection) key.attachment();
        if (key.isConnectable()) {
            channel.finishConnect();
            key.interestOps(SelectionKey.OP_READ);
            send(channel, key, connection);
        } else if (key.isWritable()) {
            send(channel, key, connection);
        } else {
            receive(channel, key, connection);
        }
    }

    private void send(SocketChannel channel, SelectionKey key, Connection connection) throws IOException {
        if (connection.out.position() == 0 && !reconnect) {
            connection.sentNs = System.nanoTime();
        }
        channel.write(connection.out);
        boolean done = !connection.out.hasRemaining();
        key.interestOps(done ? SelectionKey.OP_READ : SelectionKey.OP_WRITE);
        if (done) {
            connection.out.rewind();
        }
    }

    private void receive(SocketChannel channel, SelectionKey key, Connection connection) throws IOException {
        scratch.clear();
        int count = channel.read(scratch);
        if (count < 0) {
            throw new IOException("the broker closed a connection");
        }
        bytesIn += counting ? count : 0;
        scratch.flip();
        while (scratch.hasRemaining()) {
            if (connection.prefixBytes < 4) {
                connection.prefix[connection.prefixBytes++] = scratch.get();
                if (connection.prefixBytes == 4) {
                    connection.answerLeft = ByteBuffer.wrap(connection.prefix).getInt();
                }
                continue;
            }
            int take = (int) Math.min(scratch.remaining(), connection.answerLeft);
            scratch.position(scratch.position() + take);
            connection.answerLeft -= take;
            if (connection.answerLeft == 0) {
                answered(channel, key, connection);
                return;
            }
        }
    }

    private void answered(SocketChannel channel, SelectionKey key, Connection connection) throws IOException {
        answered.lazySet(answered.get() + 1);
        if (counting) {
            requests++;
            if (samples < LARGEST_SAMPLE_COUNT) {
                latencyUs[samples++] = (int) ((System.nanoTime() - connection.sentNs) / 1000);
            }
        }
        connection.prefixBytes = 0;
        if (reconnect) {
            channel.close();
            open();
        } else {
            send(channel, key, connection);
        }
    }

    private void report(double seconds) {
        int[] sorted = Arrays.copyOf(latencyUs, samples);
        Arrays.sort(sorted);
        int p50 = samples == 0 ? -1 : sorted[samples / 2];
        int p99 = samples == 0 ? -1 : sorted[(int) (samples * 0.99)];
        System.out.printf(
                "{\"requests\": %d, \"seconds\": %.3f, \"requests_per_s\": %.1f, \"bytes_in\": %d, \"p50_us\": %d,"
                        + " \"p99_us\": %d}%n",
                requests, seconds, requests / seconds, bytesIn, p50, p99);
    }
}
