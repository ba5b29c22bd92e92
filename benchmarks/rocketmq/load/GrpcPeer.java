import java.util.Collections;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** By the proxy's protocol, with the client for it. */
class GrpcPeer implements Peer {
  private final ClientServiceProvider provider = ClientServiceProvider.loadService();
  private final ClientConfiguration configuration;
  private final String topic;
  private final Producer producer;

  GrpcPeer(String proxy, String topic) throws Exception {
    this.topic = topic;
    configuration = ClientConfiguration.newBuilder().setEndpoints(proxy).enableSsl(false).build();
    producer = provider.newProducerBuilder()
        .setClientConfiguration(configuration)
        .setTopics(topic)
        .setTransactionChecker(view -> TransactionResolution.UNKNOWN)
        .build();
  }

  @Override
  public void send(byte[] body) throws Exception {
    producer.send(message(body));
  }

  @Override
  public void transact(byte[] body) throws Exception {
    Transaction transaction = producer.beginTransaction();
    producer.send(message(body), transaction);
    transaction.commit();
  }

  @Override
  public AutoCloseable consume(Seen seen) throws Exception {
    return provider.newPushConsumerBuilder()
        .setClientConfiguration(configuration)
        .setConsumerGroup(topic + "-load")
        .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
        .setConsumptionThreadCount(CONSUMER_THREADS)
        .setMessageListener(view -> {
          seen.message(view.getBody().getLong());
          return ConsumeResult.SUCCESS;
        })
        .build();
  }

  private Message message(byte[] body) {
    return provider.newMessageBuilder().setTopic(topic).setBody(body).build();
  }
}
