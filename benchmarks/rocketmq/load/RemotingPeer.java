import java.nio.ByteBuffer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** By the broker's own protocol, with the older client, which asks a name server. */
class RemotingPeer implements Peer {
  private final String names;
  private final String topic;
  private final TransactionMQProducer producer;

  RemotingPeer(String names, String topic) throws Exception {
    this.names = names;
    this.topic = topic;
    producer = new TransactionMQProducer(topic + "-producer");
    producer.setNamesrvAddr(names);
    producer.setTransactionListener(new TransactionListener() {
      @Override
      public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        return LocalTransactionState.COMMIT_MESSAGE;
      }

      @Override
      public LocalTransactionState checkLocalTransaction(MessageExt message) {
        return LocalTransactionState.UNKNOW;
      }
    });
    producer.start();
  }

  @Override
  public void send(byte[] body) throws Exception {
    check(producer.send(new Message(topic, body)));
  }

  @Override
  public void transact(byte[] body) throws Exception {
    check(producer.sendMessageInTransaction(new Message(topic, body), null));
  }

  @Override
  public AutoCloseable consume(Seen seen) throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "-load");
    consumer.setNamesrvAddr(names);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.setConsumeThreadMin(CONSUMER_THREADS);
    consumer.setConsumeThreadMax(CONSUMER_THREADS);
    consumer.subscribe(topic, "*");
    consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      for (MessageExt each : messages) {
        seen.message(ByteBuffer.wrap(each.getBody()).getLong());
      }
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    consumer.start();
    return consumer::shutdown;
  }

  private static void check(SendResult result) {
    if (result.getSendStatus() != SendStatus.SEND_OK) {
      throw new IllegalStateException(result.toString());
    }
  }
}
