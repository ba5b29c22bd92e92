// RocketMQ's official client for Java, driven by lines of words between tabs: commands on standard input, an answer to
// each on standard output, "ok" and what was asked for, or "error" and why.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

public class Client {
  static final ClientServiceProvider provider = ClientServiceProvider.loadService();
  static final Map<String, Producer> producers = new HashMap<>();
  static final Map<String, SimpleConsumer> consumers = new HashMap<>();
  static final Map<String, BlockingQueue<String>> pushed = new ConcurrentHashMap<>();

  static boolean tls;

  public static void main(String[] arguments) throws Exception {
    tls = arguments[0].equals("tls");
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    System.setOut(System.err); // The client may say something, too.
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String answer;
      try {
        answer = "ok\t" + String.join("\t", obey(line.split("\t", -1)));
      } catch (Throwable error) {
        StringBuilder why = new StringBuilder();
        for (Throwable each = error; each != null; each = each.getCause()) {
          why.append(each).append(' ');
        }
        answer = "error\t" + why.toString().replaceAll("\\s+", " ");
      }
      out.println(answer);
    }
    System.exit(0); // Whatever its threads still wait for.
  }

  static List<String> obey(String[] words) throws Exception {
    switch (words[0]) {
      case "producer":
        produce(words[1], words[2], words[3], words[4]);
        return List.of();
      case "consumer":
        consumers.put(words[1], provider.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration(words[2]))
            .setConsumerGroup(words[3])
            .setAwaitDuration(Duration.ofSeconds(2))
            .setSubscriptionExpressions(Collections.singletonMap(words[4], FilterExpression.SUB_ALL))
            .build());
        return List.of();
      case "push":
        BlockingQueue<String> arrived = new LinkedBlockingQueue<>();
        pushed.put(words[1], arrived);
        provider.newPushConsumerBuilder()
            .setClientConfiguration(configuration(words[2]))
            .setConsumerGroup(words[3])
            .setSubscriptionExpressions(Collections.singletonMap(words[4], FilterExpression.SUB_ALL))
            .setMessageListener(view -> {
              arrived.add(text(view));
              return ConsumeResult.SUCCESS;
            })
            .build();
        return List.of();
      case "pushed":
        String body = pushed.get(words[1]).poll(60, TimeUnit.SECONDS);
        return body == null ? List.of() : List.of(body);
      case "send":
        SendReceipt receipt = producers.get(words[1]).send(message(words[2], words[3], words[4]));
        return List.of(receipt.getMessageId().toString());
      case "transact":
        Transaction transaction = producers.get(words[1]).beginTransaction();
        SendReceipt half = producers.get(words[1]).send(message(words[2], words[3], ""), transaction);
        if (words[4].equals("COMMIT")) {
          transaction.commit();
        } else if (words[4].equals("ROLLBACK")) {
          transaction.rollback();
        }
        return List.of(half.getMessageId().toString());
      case "receive":
        List<String> bodies = new ArrayList<>();
        for (MessageView view : consumers.get(words[1]).receive(Integer.parseInt(words[2]), Duration.ofSeconds(20))) {
          bodies.add(text(view));
          consumers.get(words[1]).ack(view);
        }
        return bodies;
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }

  static String text(MessageView view) {
    ByteBuffer body = view.getBody();
    return StandardCharsets.UTF_8.decode(body).toString();
  }

  static void produce(String name, String endpoints, String topics, String verdict) throws Exception {
    ProducerBuilder builder = provider.newProducerBuilder()
        .setClientConfiguration(configuration(endpoints))
        .setTopics(topics.split(","));
    if (!verdict.isEmpty()) {
      builder.setTransactionChecker(view -> TransactionResolution.valueOf(verdict));
    }
    producers.put(name, builder.build());
  }

  static ClientConfiguration configuration(String endpoints) {
    return ClientConfiguration.newBuilder().setEndpoints(endpoints).enableSsl(tls).build();
  }

  static Message message(String topic, String body, String group) {
    MessageBuilder builder = provider.newMessageBuilder()
        .setTopic(topic)
        .setBody(body.getBytes(StandardCharsets.UTF_8));
    if (!group.isEmpty()) {
      builder.setMessageGroup(group);
    }
    return builder.build();
  }
}
