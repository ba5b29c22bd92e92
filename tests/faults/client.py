"""A blocking client on the generated stubs, for tests that must see each call fail or succeed by itself."""

from __future__ import annotations

import json
import queue
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc

from halfmq.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    consumer_pb2,
    consumer_pb2_grpc,
    message_pb2,
    producer_pb2,
    producer_pb2_grpc,
    query_pb2,
    query_pb2_grpc,
    transaction_pb2,
    transaction_pb2_grpc,
)

if TYPE_CHECKING:
    from types import TracebackType

    from google.protobuf.timestamp_pb2 import Timestamp

PATIENCE = 30.0
EITHER = transaction_pb2.TRANSACTION_STATE_UNSPECIFIED
PREPARED = transaction_pb2.TRANSACTION_STATE_PREPARED
COMMITTED = transaction_pb2.TRANSACTION_STATE_COMMITTED
ROLLED_BACK = transaction_pb2.TRANSACTION_STATE_ROLLED_BACK
PARKED = transaction_pb2.TRANSACTION_STATE_PARKED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
# No answer, or none that says what became of the call.
TRY_AGAIN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}
# For who has little patience: no answer in time, or none yet.
TRY_AGAIN_SOON = {*TRY_AGAIN, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}

# A broker that was killed comes back at once; the default waits up to two minutes before it looks again.
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]

Answer = TypeVar("Answer")
Result = TypeVar("Result", transaction_pb2.TransactionResult, producer_pb2.SendResult, producer_pb2.RecallResult)


def new_id() -> str:
    return str(uuid.uuid4())


_WAITING = (
    (
        "grpc.service_config",
        json.dumps(
            {
                "methodConfig": [
                    {
                        "name": [{}],
                        "retryPolicy": {
                            "maxAttempts": 5,
                            "initialBackoff": "0.5s",
                            "maxBackoff": "5s",
                            "backoffMultiplier": 2,
                            "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
                        },
                    }
                ]
            }
        ),
    ),
)


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


class ItemRefused(Exception):
    """The broker refused the one item of a request."""

    def __init__(self, error: message_pb2.ItemError) -> None:
        super().__init__(error.message)
        self.reason = error.reason
        self.code = next(code for code in grpc.StatusCode if code.value[0] == error.code)


class Client:
    """One connection to one broker; every call fails or succeeds once, nothing is repeated here.

    `waits`: but for what an overloaded broker refused, of which it did nothing.
    """

    def __init__(self, endpoint: str, patience: float = PATIENCE, *, waits: bool = False) -> None:
        self._patience = patience
        self.channel = grpc.insecure_channel(endpoint, options=[*_OPTIONS, *(_WAITING if waits else ())])
        self._transactions = transaction_pb2_grpc.TransactionServiceStub(self.channel)
        self._producer = producer_pb2_grpc.ProducerServiceStub(self.channel)
        self._consumer = consumer_pb2_grpc.ConsumerServiceStub(self.channel)
        self._admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self._queries = query_pb2_grpc.QueryServiceStub(self.channel)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- names ---

    def make_topic(self, queues: int = 2) -> str:
        name = unique("orders")
        self.create_topic(name, queues)
        return name

    def create_topic(self, name: str, queues: int, retention: float = 0) -> None:
        wanted = admin_pb2.Topic(name=name, queue_count=queues)
        if retention:
            wanted.retention.FromMicroseconds(int(retention * 1e6))
        self._admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=wanted), timeout=self._patience)

    def update_topic(self, name: str, queues: int) -> None:
        self._admin.UpdateTopic(admin_pb2.UpdateTopicRequest(topic=name, queue_count=queues), timeout=self._patience)

    def delete_topic(self, name: str) -> None:
        self._admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic=name), timeout=self._patience)

    def topics(self) -> dict[str, int]:
        """The number of queues of every topic."""
        found: dict[str, int] = {}
        token = ""
        while True:
            request = admin_pb2.ListTopicsRequest(page_size=1000, page_token=token)
            page = self._admin.ListTopics(request, timeout=self._patience)
            found |= {topic.name: topic.queue_count for topic in page.topics}
            if not (token := page.next_page_token):
                return found

    def make_group(self, max_attempts: int = 0) -> str:
        name = unique("readers")
        self.create_group(name, max_attempts)
        return name

    def create_group(self, name: str, max_attempts: int = 0) -> None:
        wanted = admin_pb2.ConsumerGroup(name=name, max_attempts=max_attempts)
        self._admin.CreateGroup(admin_pb2.CreateGroupRequest(group=wanted), timeout=self._patience)

    def delete_group(self, name: str) -> None:
        self._admin.DeleteGroup(admin_pb2.DeleteGroupRequest(group=name), timeout=self._patience)

    def groups(self) -> set[str]:
        """Every consumer group."""
        found: set[str] = set()
        token = ""
        while True:
            request = admin_pb2.ListGroupsRequest(page_size=1000, page_token=token)
            page = self._admin.ListGroups(request, timeout=self._patience)
            found |= {group.name for group in page.groups}
            if not (token := page.next_page_token):
                return found

    def progress(self, group: str) -> list[admin_pb2.GroupProgress]:
        """How far a group has come in every queue that it joined."""
        request = admin_pb2.DescribeGroupRequest(group=group)
        return list(self._admin.DescribeGroup(request, timeout=self._patience).progress)

    # --- producing ---

    def prepare(
        self, group: str, transaction_id: str, messages: Sequence[message_pb2.Message], check_after: float = 0
    ) -> transaction_pb2.TransactionResult:
        half = transaction_pb2.HalfTransaction(transaction_id=transaction_id, messages=messages)
        half.first_check_delay.FromMicroseconds(int(check_after * 1e6))
        request = transaction_pb2.PrepareRequest(producer_group=group, transactions=[half])
        return _only(self._transactions.Prepare(request, timeout=self._patience).results)

    def commit(self, transaction_id: str) -> transaction_pb2.TransactionResult:
        request = transaction_pb2.CommitRequest(transaction_ids=[transaction_id])
        return _only(self._transactions.Commit(request, timeout=self._patience).results)

    def roll_back(self, transaction_id: str, reason: str = "") -> transaction_pb2.TransactionResult:
        request = transaction_pb2.RollbackRequest(transaction_ids=[transaction_id], reason=reason)
        return _only(self._transactions.Rollback(request, timeout=self._patience).results)

    def send(self, message: message_pb2.Message) -> message_pb2.LogPosition:
        response = self._producer.Send(producer_pb2.SendRequest(messages=[message]), timeout=self._patience)
        position: message_pb2.LogPosition = _only(response.results).position
        return position

    def recall(self, message_id: str) -> Timestamp:
        """Takes a message back; when it was recalled."""
        request = producer_pb2.RecallRequest(message_ids=[message_id])
        recalled: Timestamp = _only(self._producer.Recall(request, timeout=self._patience).results).recalled_at
        return recalled

    def send_all(self, messages: Sequence[message_pb2.Message]) -> None:
        """Sends many in one request; none may be refused."""
        response = self._producer.Send(producer_pb2.SendRequest(messages=messages), timeout=self._patience)
        assert not [result for result in response.results if result.HasField("error")]

    def send_each(self, messages: Sequence[message_pb2.Message]) -> Sequence[producer_pb2.SendResult]:
        """Sends many in one request; what became of each."""
        request = producer_pb2.SendRequest(messages=messages)
        results: Sequence[producer_pb2.SendResult] = self._producer.Send(request, timeout=self._patience).results
        return results

    def transaction(self, transaction_id: str) -> transaction_pb2.Transaction:
        request = transaction_pb2.GetTransactionRequest(transaction_id=transaction_id)
        found: transaction_pb2.Transaction = self._transactions.GetTransaction(
            request, timeout=self._patience
        ).transaction
        return found

    def message(self, message_id: str) -> query_pb2.GetMessageResponse:
        """A message by its identity, wherever it is."""
        request = query_pb2.GetMessageRequest(message_id=message_id)
        found: query_pb2.GetMessageResponse = self._queries.GetMessage(request, timeout=self._patience)
        return found

    def undecided(self, group: str, state: transaction_pb2.TransactionState.ValueType = EITHER) -> set[str]:
        request = admin_pb2.ListTransactionsRequest(producer_group=group, page_size=1000, state=state)
        found = self._admin.ListTransactions(request, timeout=self._patience).transactions
        return {summary.transaction_id for summary in found}

    def resolve(self, transaction_id: str, resolution: admin_pb2.Resolution.ValueType) -> None:
        request = admin_pb2.ResolveTransactionRequest(
            transaction_id=transaction_id, resolution=resolution, reason="test", operator="test"
        )
        self._admin.ResolveTransaction(request, timeout=self._patience)

    def checks(self, group: str, patience: float = PATIENCE) -> Checks:
        """Registers a producer that is asked about its group's transactions, for so many seconds."""
        return Checks(self._transactions, group, patience)

    # --- consuming ---

    def pull(
        self, group: str, topic: str | Sequence[str], most: int = 1000, *, wait: float = 0, lease: float = 60
    ) -> list[consumer_pb2.Delivery]:
        topics = [topic] if isinstance(topic, str) else topic
        request = consumer_pb2.PullRequest(consumer_group=group, topics=topics, max_messages=most)
        request.wait.FromMicroseconds(int(wait * 1e6))
        request.lease_duration.FromMicroseconds(int(lease * 1e6))
        pieces = list(self._consumer.Pull(request, timeout=self._patience + wait))
        return [delivery for piece in pieces for delivery in piece.deliveries]

    def start_pull(self, request: consumer_pb2.PullRequest) -> Iterator[consumer_pb2.PullResponse]:
        stream: Iterator[consumer_pb2.PullResponse] = self._consumer.Pull(request, timeout=self._patience + 60)
        return stream

    def ack(self, handles: Sequence[str]) -> list[consumer_pb2.ReceiptResult]:
        request = consumer_pb2.AckRequest(receipt_handles=handles)
        return list(self._consumer.Ack(request, timeout=self._patience).results)

    def nack(self, handles: Sequence[str], reason: str) -> list[consumer_pb2.ReceiptResult]:
        request = consumer_pb2.NackRequest(receipt_handles=handles, reason=reason)
        request.delay.FromMicroseconds(0)
        return list(self._consumer.Nack(request, timeout=self._patience).results)

    def extend(self, handles: Sequence[str], lease: float) -> list[consumer_pb2.ReceiptResult]:
        request = consumer_pb2.ExtendLeaseRequest(receipt_handles=handles)
        request.duration.FromMicroseconds(int(lease * 1e6))
        return list(self._consumer.ExtendLease(request, timeout=self._patience).results)

    def consume(self, requests: Iterator[consumer_pb2.ConsumeRequest]) -> Iterator[consumer_pb2.ConsumeResponse]:
        stream: Iterator[consumer_pb2.ConsumeResponse] = self._consumer.Consume(requests, timeout=self._patience)
        return stream

    def drain(self, group: str, topic: str) -> list[consumer_pb2.Delivery]:
        """Pulls and acknowledges until nothing is left."""
        taken: list[consumer_pb2.Delivery] = []
        while deliveries := self.pull(group, topic):
            results = self.ack([delivery.receipt_handle for delivery in deliveries])
            assert not [result for result in results if result.HasField("error")]
            taken += deliveries
        return taken

    def offsets(self, topic: str, group: str = "") -> list[consumer_pb2.QueueOffset]:
        request = consumer_pb2.QueueOffsetsRequest(topic=topic, consumer_group=group)
        return list(self._consumer.QueueOffsets(request, timeout=self._patience).queues)

    def read(self, topic: str, queue: int, offset: int) -> list[message_pb2.LogMessage]:
        """What a queue has from an offset on."""
        request = consumer_pb2.ReadQueueRequest(topic=topic, queue=queue, offset=offset, max_messages=100_000)
        return [each for piece in self._consumer.ReadQueue(request, timeout=self._patience) for each in piece.messages]

    def commit_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Records that a group has handled all below an offset."""
        request = consumer_pb2.CommitOffsetsRequest(consumer_group=group, topic=topic)
        request.queues.add(queue=queue, offset=offset)
        self._consumer.CommitOffsets(request, timeout=self._patience)

    def log(self, topic: str) -> dict[int, list[message_pb2.LogMessage]]:
        """Everything that lies in a topic, by queue."""
        return {each.queue: self.read_queue(topic, each.queue, each.max_offset) for each in self.offsets(topic)}

    def read_queue(self, topic: str, queue: int, end: int) -> list[message_pb2.LogMessage]:
        """What lies in a queue below an offset."""
        found: list[message_pb2.LogMessage] = []
        following = 0
        while following < end:
            request = consumer_pb2.ReadQueueRequest(topic=topic, queue=queue, offset=following, max_messages=100_000)
            pieces = list(self._consumer.ReadQueue(request, timeout=self._patience))
            read = [message for piece in pieces for message in piece.messages]
            if not read:
                break
            found += read
            following = read[-1].offset + 1
        return found


class Checks:
    """A producer's check stream."""

    def __init__(self, stub: transaction_pb2_grpc.TransactionServiceStub, group: str, patience: float) -> None:
        self._outgoing: queue.SimpleQueue[transaction_pb2.CheckTransactionsRequest | None] = queue.SimpleQueue()
        register = transaction_pb2.RegisterProducer(producer_group=group, client_id="asked")
        self._outgoing.put(transaction_pb2.CheckTransactionsRequest(register=register))
        self._call: Any = stub.CheckTransactions(iter(self._outgoing.get, None), timeout=patience)
        try:
            assert next(self._call).HasField("registered")
        except BaseException:
            self._outgoing.put(None)
            raise

    def next(self, transaction_id: str) -> transaction_pb2.TransactionCheck:
        """The next check of this transaction."""
        while True:
            response = next(self._call)
            if response.HasField("check") and response.check.transaction_id == transaction_id:
                check: transaction_pb2.TransactionCheck = response.check
                return check

    def commit(self, check: transaction_pb2.TransactionCheck) -> transaction_pb2.TransactionResult:
        """Answers that the local transaction committed; what became of the verdict."""
        self.answer(check, transaction_pb2.CHECK_VERDICT_COMMIT)
        while True:
            response = next(self._call)
            if response.HasField("answered") and response.answered.result.transaction_id == check.transaction_id:
                result: transaction_pb2.TransactionResult = response.answered.result
                return _only([result])

    def answer(self, check: transaction_pb2.TransactionCheck, verdict: transaction_pb2.CheckVerdict.ValueType) -> None:
        """Answers, and does not wait for what becomes of it."""
        answer = transaction_pb2.CheckAnswer(
            transaction_id=check.transaction_id, check_number=check.check_number, verdict=verdict
        )
        self._outgoing.put(transaction_pb2.CheckTransactionsRequest(answer=answer))

    def leave(self) -> None:
        """Ends the stream; returns when the broker counts on this producer no more."""
        self._outgoing.put(None)
        for _ in self._call:
            pass

    def cancel(self) -> None:
        """Ends the stream at once; another thread that reads it gets an error."""
        self._outgoing.put(None)
        self._call.cancel()

    def __iter__(self) -> Iterator[transaction_pb2.CheckTransactionsResponse]:
        stream: Iterator[transaction_pb2.CheckTransactionsResponse] = iter(self._call)
        return stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class Fleet:
    """Several brokers on one database: a call goes to the next broker when one does not answer."""

    def __init__(self, endpoints: Sequence[str], patience: float = PATIENCE, *, waits: bool = False) -> None:
        self._clients = [Client(endpoint, patience, waits=waits) for endpoint in endpoints]
        self._gone = {UNAVAILABLE} if patience >= PATIENCE else {UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
        self._turn = 0

    def call(self, what: Callable[[Client], Answer], *, attempts: int = 1) -> Answer:
        """Runs a call, up to `attempts` times on each broker; what the last one said."""
        left = attempts * len(self._clients)
        while True:
            client = self._clients[self._turn % len(self._clients)]
            left -= 1
            try:
                return what(client)
            except grpc.RpcError as error:
                self._turn += 1
                if code_of(error) not in self._gone or not left:
                    raise

    @property
    def rivals(self) -> list[Client]:
        """Two brokers, the same one where there are no two."""
        return [self._clients[self._turn % len(self._clients)], self._clients[(self._turn + 1) % len(self._clients)]]

    def close(self) -> None:
        for client in self._clients:
            client.close()


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    """The status of a failed call."""
    assert isinstance(error, grpc.Call)
    return error.code()


def trailer(error: grpc.RpcError, key: str) -> str:
    """A text that the broker sent with the status of a failed call; empty when it did not."""
    assert isinstance(error, grpc.Call)
    value = dict(error.trailing_metadata() or ()).get(key, "")
    return value if isinstance(value, str) else value.decode()


def message(topic: str, body: str | bytes, **rest: Any) -> message_pb2.Message:
    return message_pb2.Message(topic=topic, body=body.encode() if isinstance(body, str) else body, **rest)


def _only(results: Sequence[Result]) -> Result:
    (result,) = results
    if result.HasField("error"):
        raise ItemRefused(result.error)
    return result
