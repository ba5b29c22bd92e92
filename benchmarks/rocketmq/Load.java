// Load on a server that speaks RocketMQ's protocol, by its official client for Java. One measurement a process:
//
//   java -cp JARS Load.java ENDPOINT TOPIC transactions THREADS SECONDS SIZE
//   java -cp JARS Load.java ENDPOINT TOPIC send         THREADS SECONDS SIZE
//   java -cp JARS Load.java ENDPOINT TOPIC steady       RATE    SECONDS SIZE
//   java -cp JARS Load.java ENDPOINT TOPIC consume      COUNT   0       SIZE
//
// Transactions are prepared and committed, and delivered to a push consumer that runs beside them; so are those at a steady
// rate, whose times count from when each was due. What is measured follows as much time to warm up. Prints one line of JSON.

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

public class Load {
  static final ClientServiceProvider provider = ClientServiceProvider.loadService();
  static final int CONSUMER_THREADS = 20;
  static final int STEADY_THREADS = 64;
  static ClientConfiguration configuration;
  static String topic;
  static int size;

  public static void main(String[] arguments) throws Exception {
    configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false).build();
    topic = arguments[1];
    size = Integer.parseInt(arguments[5]);
    int amount = Integer.parseInt(arguments[3]);
    double seconds = Double.parseDouble(arguments[4]);
    String answer;
    switch (arguments[2]) {
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
        throw new IllegalArgumentException(arguments[2]);
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
    Producer producer = producer();
    PushConsumer consumer = consumer(body -> {
      long now = System.nanoTime();
      if (now >= from && now < until) {
        delivered.incrementAndGet();
      }
    });
    Times times = loops(threads, from, until, () -> transact(producer, 0));
    consumer.close();
    return String.format(Locale.ROOT, "{\"per_s\": %.1f, \"delivered_per_s\": %.1f, \"p50_ms\": %s, \"p99_ms\": %s}",
        times.count() / seconds, delivered.get() / seconds, times.percentile(50), times.percentile(99));
  }

  static String send(int threads, double seconds) throws Exception {
    long from = System.nanoTime() + (long) (seconds * 1e9);
    Producer producer = producer();
    Times times = loops(threads, from, from + (long) (seconds * 1e9), () -> producer.send(message(0)));
    return String.format(Locale.ROOT, "{\"per_s\": %.1f, \"p50_ms\": %s, \"p99_ms\": %s}",
        times.count() / seconds, times.percentile(50), times.percentile(99));
  }

  static String steady(int rate, double seconds) throws Exception {
    Times confirmed = new Times();
    Times received = new Times();
    Producer producer = producer();
    long start = System.nanoTime() + 500_000_000L;
    long from = start + (long) (seconds * 1e9);
    consumer(due -> {
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
        transact(producer, due);
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
    Producer producer = producer();
    // The group begins at the end of the topic, so it is made known first.
    AtomicInteger known = new AtomicInteger();
    PushConsumer before = consumer(body -> known.incrementAndGet());
    producer.send(message(0));
    while (known.get() == 0) {
      Thread.sleep(50);
    }
    before.close();
    AtomicInteger left = new AtomicInteger(count);
    ExecutorService pool = Executors.newFixedThreadPool(STEADY_THREADS);
    for (int thread = 0; thread < STEADY_THREADS; thread++) {
      pool.submit(() -> {
        while (left.getAndDecrement() > 0) {
          producer.send(message(0));
        }
        return null;
      });
    }
    pool.shutdown();
    pool.awaitTermination(600, TimeUnit.SECONDS);
    AtomicLong first = new AtomicLong();
    AtomicLong last = new AtomicLong();
    AtomicInteger taken = new AtomicInteger();
    consumer(body -> {
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

  interface Seen {
    void body(long marked);
  }

  static Producer producer() throws Exception {
    return provider.newProducerBuilder()
        .setClientConfiguration(configuration)
        .setTopics(topic)
        .setTransactionChecker(view -> TransactionResolution.UNKNOWN)
        .build();
  }

  static PushConsumer consumer(Seen seen) throws Exception {
    MessageListener listener = view -> {
      ByteBuffer body = view.getBody();
      seen.body(body.getLong());
      return ConsumeResult.SUCCESS;
    };
    return provider.newPushConsumerBuilder()
        .setClientConfiguration(configuration)
        .setConsumerGroup(topic + "-load")
        .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
        .setConsumptionThreadCount(CONSUMER_THREADS)
        .setMessageListener(listener)
        .build();
  }

  static Void transact(Producer producer, long marked) throws Exception {
    Transaction transaction = producer.beginTransaction();
    producer.send(message(marked), transaction);
    transaction.commit();
    return null;
  }

  static Message message(long marked) {
    byte[] body = new byte[size];
    ByteBuffer.wrap(body).putLong(marked);
    return provider.newMessageBuilder().setTopic(topic).setBody(body).build();
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
