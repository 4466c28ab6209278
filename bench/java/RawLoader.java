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
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/**
 * A load generator that is not the bottleneck: one thread, one selector, DEPTH requests in flight on each connection.
 *
 * <p>It sends the same frame again and again and only counts what comes back, so that what is measured is the broker.
 *
 * <pre>
 *   java RawLoader.java request PORT FRAME_FILE CONNECTIONS WARMUP_S SECONDS [DEPTH [BESIDE]]
 *   java RawLoader.java connect PORT FRAME_FILE AT_A_TIME   WARMUP_S SECONDS
 *   java RawLoader.java paced   PORT FRAME_FILE CONNECTIONS WARMUP_S SECONDS RATE
 * </pre>
 *
 * BESIDE: one more connection keeps so many requests in flight, which are not counted: what the others have to bear.
 *
 * For each line on its standard input it prints how many requests were answered so far. FRAME_FILE holds a whole request frame, length prefix included. `connect` opens a connection, sends the frame, reads the
 * answer and closes. `paced` sends RATE requests a second in all, whether answers have come or not; a latency counts
 * from the time at which its request was due. Prints one JSON object.
 */
public final class RawLoader {
    private static final int LARGEST_SAMPLE_COUNT = 8_000_000;

    private static final int BURST_BYTES = 64 * 1024;

    private static final int MOST_UNANSWERED = 1000;

    private static final long LONGEST_PAUSE_NS = 20_000;

    private final int port;
    private final int frameBytes;
    private final ByteBuffer burst;
    private final boolean reconnect;
    private final Selector selector = Selector.open();
    private final ByteBuffer scratch = ByteBuffer.allocateDirect(1 << 20);
    private final int[] latencyUs = new int[LARGEST_SAMPLE_COUNT];
    private int samples;
    private long requests;
    private long bytesIn;
    private boolean counting;
    private final AtomicLong answered = new AtomicLong();
    private final List<SelectionKey> connected = new ArrayList<>();
    private long periodNs;
    private long dueNs;
    private int next;

    private RawLoader(int port, byte[] frame, int depth, boolean reconnect) throws IOException {
        this.port = port;
        this.frameBytes = frame.length;
        int frames = Math.max(1, Math.min(depth, BURST_BYTES / frame.length));
        this.burst = ByteBuffer.allocateDirect(frames * frame.length);
        for (int i = 0; i < frames; i++) {
            this.burst.put(frame);
        }
        this.burst.flip();
        this.reconnect = reconnect;
    }

    /** What is known of one connection: which requests are to be sent, and how much of an answer is still to come. */
    private final class Connection {
        final int depth;
        final boolean counted;
        final ByteBuffer out = burst.duplicate().limit(0);
        final byte[] prefix = new byte[4];
        final long[] sentNs;
        int toSend;
        long sent;
        long received;
        int prefixBytes;
        long answerLeft;

        Connection(int depth, boolean counted) {
            this.depth = depth;
            this.counted = counted;
            this.toSend = periodNs > 0 ? 0 : depth;
            this.sentNs = new long[depth];
        }
    }

    public static void main(String[] args) throws IOException {
        boolean reconnect = args[0].equals("connect");
        byte[] frame = Files.readAllBytes(Path.of(args[2]));
        boolean paced = args[0].equals("paced");
        int depth = paced ? MOST_UNANSWERED : args.length > 6 ? Integer.parseInt(args[6]) : 1;
        int beside = args.length > 7 ? Integer.parseInt(args[7]) : 0;
        RawLoader loader = new RawLoader(Integer.parseInt(args[1]), frame, Math.max(depth, beside), reconnect);
        loader.periodNs = paced ? (long) (1e9 / Double.parseDouble(args[6])) : 0;
        Thread counter = new Thread(loader::tellCounts);
        counter.setDaemon(true);
        counter.start();
        if (beside > 0) {
            loader.open(beside, false);
        }
        for (int i = 0; i < Integer.parseInt(args[3]); i++) {
            loader.open(depth, true);
        }
        loader.run(Double.parseDouble(args[4]), Double.parseDouble(args[5]));
    }

    private void run(double warmupS, double seconds) throws IOException {
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

    private void open(int depth, boolean counted) throws IOException {
        SocketChannel channel = SocketChannel.open();
        channel.configureBlocking(false);
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        Connection connection = new Connection(depth, counted);
        connection.sentNs[0] = System.nanoTime();
        if (channel.connect(new InetSocketAddress("127.0.0.1", port))) {
            begin(channel, channel.register(selector, SelectionKey.OP_READ, connection), connection);
        } else {
            channel.register(selector, SelectionKey.OP_CONNECT, connection);
        }
    }

    private void loopUntil(long endNs) throws IOException {
        dueNs = System.nanoTime();
        while (System.nanoTime() < endNs) {
            if (periodNs == 0) {
                selector.select(100);
            } else if (selector.selectNow() == 0) {
                sendDue();
                LockSupport.parkNanos(Math.min(Math.max(dueNs - System.nanoTime(), 1), LONGEST_PAUSE_NS));
            }
            Iterator<SelectionKey> keys = selector.selectedKeys().iterator();
            while (keys.hasNext()) {
                SelectionKey key = keys.next();
                keys.remove();
                handle(key);
            }
        }
    }

    /** Send the requests that are due, each on the next connection; none while that has too many unanswered. */
    private void sendDue() throws IOException {
        while (!connected.isEmpty() && dueNs <= System.nanoTime()) {
            SelectionKey key = connected.get(next++ % connected.size());
            Connection connection = (Connection) key.attachment();
            if (connection.sent - connection.received < MOST_UNANSWERED - 1) {
                connection.toSend++;
                send((SocketChannel) key.channel(), key, connection);
            }
            dueNs += periodNs;
        }
    }

    private void begin(SocketChannel channel, SelectionKey key, Connection connection) throws IOException {
        if (periodNs > 0) {
            connected.add(key);
        }
        key.interestOps(SelectionKey.OP_READ);
        send(channel, key, connection);
    }

    private void handle(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        Connection connection = (Connection) key.attachment();
        if (key.isConnectable()) {
            channel.finishConnect();
            begin(channel, key, connection);
        } else {
            if (key.isWritable()) {
                send(channel, key, connection);
            }
            if (key.isReadable()) {
                receive(channel, key, connection);
            }
        }
    }

    private void send(SocketChannel channel, SelectionKey key, Connection connection) throws IOException {
        while (true) {
            if (!connection.out.hasRemaining()) {
                if (connection.toSend == 0) {
                    key.interestOps(SelectionKey.OP_READ);
                    return;
                }
                int frames = Math.min(connection.toSend, burst.limit() / frameBytes);
                long now = periodNs > 0 ? dueNs : System.nanoTime();
                for (int i = 0; i < frames && !reconnect; i++) {
                    connection.sentNs[(int) (connection.sent++ % connection.depth)] = now;
                }
                connection.toSend -= frames;
                connection.out.limit(frames * frameBytes).rewind();
            }
            channel.write(connection.out);
            if (connection.out.hasRemaining()) {
                key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                return;
            }
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
                connection.prefixBytes = 0;
                count(connection);
                if (reconnect) {
                    channel.close();
                    open(1, true);
                    return;
                }
                connection.toSend += periodNs > 0 ? 0 : 1;
            }
        }
        if (!connection.out.hasRemaining() && connection.toSend > 0) {
            send(channel, key, connection);
        }
    }

    private void count(Connection connection) {
        long sentNs = connection.sentNs[(int) (connection.received++ % connection.depth)];
        if (!connection.counted) {
            return;
        }
        answered.lazySet(answered.get() + 1);
        if (counting) {
            requests++;
            if (samples < LARGEST_SAMPLE_COUNT) {
                latencyUs[samples++] = (int) ((System.nanoTime() - sentNs) / 1000);
            }
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
