/** A client of RocketMQ: one producer, and push consumers of one group. */
interface Peer {
  /** Sees the first eight bytes of each message. */
  interface Seen {
    void message(long marked);
  }

  void send(byte[] body) throws Exception;

  /** Sends a half message and commits it. */
  void transact(byte[] body) throws Exception;

  /** Starts a consumer; returns how to end it. */
  AutoCloseable consume(Seen seen) throws Exception;

  int CONSUMER_THREADS = 20;

  static Peer of(String protocol, String endpoint, String topic) throws Exception {
    switch (protocol) {
      case "grpc":
        return new GrpcPeer(endpoint, topic);
      case "remoting":
        return new RemotingPeer(endpoint, topic);
      default:
        throw new IllegalArgumentException(protocol);
    }
  }
}
