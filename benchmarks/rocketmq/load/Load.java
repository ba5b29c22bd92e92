// Load on RocketMQ. One measurement a process:
//
//   java -cp JARS:CLASSES Load PROTOCOL ENDPOINT TOPIC transactions THREADS SECONDS SIZE
//   java -cp JARS:CLASSES Load PROTOCOL ENDPOINT TOPIC send         THREADS SECONDS SIZE
//   java -cp JARS:CLASSES Load PROTOCOL ENDPOINT TOPIC steady       RATE    SECONDS SIZE
//   java -cp JARS:CLASSES Load PROTOCOL ENDPOINT TOPIC consume      COUNT   0       SIZE
//
// PROTOCOL is grpc (ENDPOINT: the proxy) or remoting (ENDPOINT: the name server). Transactions are prepared and committed,
// and delivered to a push consumer that runs beside them; so are those at a steady rate, whose times count from when each was
// due. What is measured follows as much time to warm up. Prints one line of JSON.

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

public class Load {
  static final int STEADY_THREADS = 64;
  static Peer peer;
  static int size;

  public static void main(String[] arguments) throws Exception {
    peer = Peer.of(arguments[0], arguments[1], arguments[2]);
    int amount = Integer.parseInt(arguments[4]);
    double seconds = Double.parseDouble(arguments[5]);
    size = Integer.parseInt(arguments[6]);
    String answer;
    switch (arguments[3]) {
      case "transactions":
        answer = transactions(amount, seconds);
        break;
      case "send":
        answer = send(amount, seconds);
        break;
      case "steady":
        answer = steady(amount, seconds);
        break;
      case "consume":
        answer = consume(amount);
        break;
      default:
        throw new IllegalArgumentException(arguments[3]);
    }
    System.out.println(answer);
    System.out.flush();
    Runtime.getRuntime().halt(0); // Whatever its threads still wait for.
  }

  /** Times of operations that ended within a period, in nanoseconds. */
  static class Times {
    private long[] values = new long[1 << 16];
    private int count;

    synchronized void add(long value) {
      if (count == values.length) {
        values = Arrays.copyOf(values, 2 * count);
      }
      values[count++] = value;
    }

    synchronized int count() {
      return count;
    }

    synchronized String percentile(int percent) {
      long[] sorted = Arrays.copyOf(values, count);
      Arrays.sort(sorted);
      double value = count == 0 ? Double.NaN : sorted[Math.min(count - 1, count * percent / 100)] / 1e6;
      return String.format(Locale.ROOT, "%.3f", value);
    }
  }

  static String transactions(int threads, double seconds) throws Exception {
    AtomicLong delivered = new AtomicLong();
    long from = System.nanoTime() + (long) (seconds * 1e9);
    long until = from + (long) (seconds * 1e9);
    AutoCloseable consumer = peer.consume(marked -> {
      long now = System.nanoTime();
      if (now >= from && now < until) {
        delivered.incrementAndGet();
      }
    });
    Times times = loops(threads, from, until, () -> transact(0));
    consumer.close();
    return String.format(Locale.ROOT, "{\"per_s\": %.1f, \"delivered_per_s\": %.1f, \"p50_ms\": %s, \"p99_ms\": %s}",
        times.count() / seconds, delivered.get() / seconds, times.percentile(50), times.percentile(99));
  }

  static String send(int threads, double seconds) throws Exception {
    long from = System.nanoTime() + (long) (seconds * 1e9);
    Times times = loops(threads, from, from + (long) (seconds * 1e9), () -> send(0));
    return String.format(Locale.ROOT, "{\"per_s\": %.1f, \"p50_ms\": %s, \"p99_ms\": %s}",
        times.count() / seconds, times.percentile(50), times.percentile(99));
  }

  static String steady(int rate, double seconds) throws Exception {
    Times confirmed = new Times();
    Times received = new Times();
    long start = System.nanoTime() + 500_000_000L;
    long from = start + (long) (seconds * 1e9);
    peer.consume(due -> {
      if (due >= from) {
        received.add(System.nanoTime() - due);
      }
    });
    ExecutorService pool = Executors.newFixedThreadPool(STEADY_THREADS);
    int count = (int) (2 * seconds * rate);
    for (int number = 0; number < count; number++) {
      long due = start + (long) (number * 1e9 / rate);
      long left = due - System.nanoTime();
      if (left > 0) {
        TimeUnit.NANOSECONDS.sleep(left);
      }
      pool.submit(() -> {
        transact(due);
        if (due >= from) {
          confirmed.add(System.nanoTime() - due);
        }
        return null;
      });
    }
    pool.shutdown();
    pool.awaitTermination(60, TimeUnit.SECONDS);
    for (int tries = 0; tries < 300 && received.count() < confirmed.count(); tries++) {
      Thread.sleep(100);
    }
    return String.format(Locale.ROOT,
        "{\"confirmed\": %d, \"received\": %d, \"confirmed_p50_ms\": %s, \"confirmed_p99_ms\": %s, "
            + "\"received_p50_ms\": %s, \"received_p99_ms\": %s}",
        confirmed.count(), received.count(), confirmed.percentile(50), confirmed.percentile(99),
        received.percentile(50), received.percentile(99));
  }

  /** Fills the topic, then measures how fast that is consumed, from the first message on. */
  static String consume(int count) throws Exception {
    // The group begins at the end of the topic, so it is made known first.
    AtomicInteger known = new AtomicInteger();
    AutoCloseable before = peer.consume(marked -> known.incrementAndGet());
    send(0);
    while (known.get() == 0) {
      Thread.sleep(50);
    }
    before.close();
    AtomicInteger left = new AtomicInteger(count);
    ExecutorService pool = Executors.newFixedThreadPool(STEADY_THREADS);
    for (int thread = 0; thread < STEADY_THREADS; thread++) {
      pool.submit(() -> {
        while (left.getAndDecrement() > 0) {
          send(0);
        }
        return null;
      });
    }
    pool.shutdown();
    pool.awaitTermination(600, TimeUnit.SECONDS);
    AtomicLong first = new AtomicLong();
    AtomicLong last = new AtomicLong();
    AtomicInteger taken = new AtomicInteger();
    peer.consume(marked -> {
      first.compareAndSet(0, System.nanoTime());
      if (taken.incrementAndGet() == count) {
        last.set(System.nanoTime());
      }
    });
    while (last.get() == 0) {
      Thread.sleep(20);
    }
    return String.format(Locale.ROOT, "{\"per_s\": %.1f}", count / ((last.get() - first.get()) / 1e9));
  }

  static Void send(long marked) throws Exception {
    peer.send(body(marked));
    return null;
  }

  static Void transact(long marked) throws Exception {
    peer.transact(body(marked));
    return null;
  }

  static byte[] body(long marked) {
    byte[] body = new byte[size];
    ByteBuffer.wrap(body).putLong(marked);
    return body;
  }

  static Times loops(int threads, long from, long until, Callable<?> one) throws Exception {
    Times times = new Times();
    ExecutorService pool = Executors.newFixedThreadPool(threads);
    for (int thread = 0; thread < threads; thread++) {
      pool.submit(() -> {
        for (long start = System.nanoTime(); start < until; start = System.nanoTime()) {
          one.call();
          long end = System.nanoTime();
          if (end >= from && end < until) {
            times.add(end - start);
          }
        }
        return null;
      });
    }
    pool.shutdown();
    if (!pool.awaitTermination(Duration.ofNanos(until - System.nanoTime()).toSeconds() + 120, TimeUnit.SECONDS)) {
      throw new IllegalStateException("calls do not end");
    }
    return times;
  }
}
