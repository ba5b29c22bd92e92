"""One shard of a bridge: a thread that carries some queues, with a transactional producer of its own.

The producer's transactional id is the shard's. A new owner of the shard initialises it first: that ends what an earlier
one has open, and refuses whatever it still tries, however long it was frozen. Then the positions are read, which
nobody else can move any more. After any failure the shard starts over in the same way: there is one path, and it is
the one of a restart.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException, Producer

from client_core.connection import RetryConfig
from client_core.errors import BrokerFailed, BrokerUnavailable, HalfmqError
from halfmq_connect.kafka.cluster import QUIET, is_fenced, unavailable
from halfmq_connect.kafka.ending import Ending
from halfmq_connect.kafka.errors import BridgeError, MessagesMissing, RecordRefused
from halfmq_connect.kafka.feed import Feed
from halfmq_connect.kafka.positions import Positions, position, positions_topic
from halfmq_connect.kafka.starting import starting_offsets
from halfmq_connect.kafka.writing import Stopping, Writer

if TYPE_CHECKING:
    from halfmq_connect.kafka.feed import Portion, QueueAt
    from halfmq_connect.kafka.plan import Plan

__all__ = ["Shard"]

_log = logging.getLogger("halfmq.kafka")

_NEW_QUEUES = 30.0
"""Seconds between looks for queues that were added to topics."""
_IDLE = 0.2
_BUFFER = 32 * 1024
_SMALLEST_BUFFER = 32 * 1024 * 1024
"""A message of halfmq is smaller, whatever its broker's limit."""
_LARGEST_OF_CLIENT = 1_000_000_000
_BEGIN, _TRY = 30.0, 1.0
"""Seconds for Kafka to end what an earlier owner has open, and of one try, which the next one resumes."""
_JOIN, _JOIN_AT_THE_END = 60.0, 8.0


class Shard:
    """Carries the queues of one shard, until it is stopped or fails."""

    def __init__(self, number: int, plan: Plan) -> None:
        """Starts the thread."""
        self._number, self._plan = number, plan
        self._stopping = threading.Event()
        self._ends: dict[QueueAt, int] = {}
        self._reached: dict[QueueAt, int] = {}
        self._refused: dict[str, RecordRefused] = {}
        self._singly = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"bridge {plan.name} shard {number}", daemon=True)
        self._thread.start()

    @property
    def reached(self) -> dict[QueueAt, int]:
        """How far queues are carried, as far as it has known: also while it starts over. May be asked in any thread."""
        return dict(self._reached)

    def stop(self) -> None:
        """Has it end after the transaction under way."""
        self._stopping.set()

    def join(self, ending: threading.Event) -> None:
        """Waits for its end, not as long where the bridge ends; one that does not end is fenced by the next owner."""
        began = time.monotonic()
        while self._thread.is_alive() and time.monotonic() - began < (_JOIN_AT_THE_END if ending.is_set() else _JOIN):
            self._thread.join(_IDLE)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._carry()
            except (Stopping, Ending):
                return
            except KafkaException as raised:
                if is_fenced(raised):
                    name = self._plan.name
                    text = "another replica has taken over shard %d of %s"
                    _log.info(text, self._number, name, extra={"bridge": name})
                elif unavailable(raised):
                    self._plan.kafka.note(raised)
                else:
                    self.failure = BridgeError(f"Kafka refuses: {raised.args[0]}")
                    return
            except (BrokerUnavailable, BrokerFailed) as error:
                self._plan.halfmq.note(error)
            except RecordRefused as error:
                if error.position in self._refused:
                    self.failure = error
                    return
                # The client blames a whole batch: once more in batches of one, and then up to the record that it is.
                if self._singly:
                    self._refused[error.position] = error
                self._singly = True
            except BaseException as error:
                self.failure = error
                return
            failures = 1 if time.monotonic() - began > _NEW_QUEUES else failures + 1
            self._stopping.wait(RetryConfig(initial_backoff=0.2).backoff(failures))

    def _carry(self) -> None:
        plan = self._plan
        topics = plan.cluster.topics(set(plan.routes.values()))
        producer = self._producer([each.max_bytes for each in topics.values()])
        self._ends = {}
        feed = Feed(plan.link, plan.runner, plan.halfmq, plan.settings.max_records, plan.settings.max_bytes)
        try:
            self._initialise(producer)
            plan.positions.check()
            places = plan.cluster.content(positions_topic(plan.name), self._number)
            positions = Positions.read(places, plan.settings.shards)
            # What was read is of that topic, too: identities do not come again.
            plan.positions.check()
            plan.kafka.over()
            writer = Writer(plan, producer, topics, self._refused, self._stopping)
            look_at = 0.0
            while not self._stopping.is_set():
                if time.monotonic() >= look_at:
                    self._begin(positions, writer, feed)
                    look_at = time.monotonic() + _NEW_QUEUES
                portions = feed.take(_IDLE)
                if portions:
                    portions += feed.take(plan.settings.linger, portions)
                if portions:
                    self._transact(writer, portions)
                    if self._singly:
                        self._singly = False
                        return
        except BaseException:
            # A new owner ends it otherwise, or the transaction's time-out.
            with suppress(KafkaException):
                producer.purge()
                producer.abort_transaction(2.0)
            raise
        finally:
            feed.close()

    def _initialise(self, producer: Producer) -> None:
        until = time.monotonic() + _BEGIN
        while True:
            try:
                producer.init_transactions(_TRY)
            except KafkaException as raised:
                if not raised.args[0].retriable() or time.monotonic() >= until:
                    raise
                if self._stopping.is_set():
                    raise Stopping from raised
            else:
                return

    def _producer(self, limits: list[int]) -> Producer:
        plan = self._plan
        own = {
            "transactional.id": f"{positions_topic(plan.name)}.{self._number}",
            # A batch holds one message of any size that fits its topic, or several that fit every topic.
            "message.max.bytes": min(_LARGEST_OF_CLIENT, max(limits) + _BUFFER),
            "batch.size": max(1, min(1_000_000, *limits)),
            "queue.buffering.max.kbytes": max(_SMALLEST_BUFFER, plan.settings.max_bytes) // 1024,
            "delivery.report.only.error": True,
            **({"batch.num.messages": 1} if self._singly else {}),
        }
        # As Kafka's own producers: a key is in the same partition, whoever sends.
        return Producer({"linger.ms": 5, "partitioner": "murmur2_random", **plan.client, **QUIET, **own})

    def _begin(self, positions: Positions, writer: Writer, feed: Feed) -> None:
        """Starts with the queues that are not read yet, after their positions are written down."""
        starts, entries = starting_offsets(self._plan, self._number, positions)
        if entries:
            writer.begin()
            writer.note(self._number, entries)
            writer.commit()
            self._plan.kafka.over()
            for queue, offset in starts.items():
                positions.queues[queue.topic, queue.queue] = queue.topic_id, offset
                positions.topics[queue.topic] = queue.topic_id
        for queue, offset in starts.items():
            feed.add(queue, offset)
            self._ends.setdefault(queue, offset)
        self._reached |= self._ends
        # Also what was told before: a replica that was frozen may have told less since.
        self._plan.progress.note(self._ends)

    def _transact(self, writer: Writer, portions: list[Portion]) -> None:
        """Carries messages in one transaction, together with the positions after them."""
        ends: dict[QueueAt, int] = {}
        trouble, count = None, 0
        writer.begin()
        while portions:
            # Kafka's client has a copy of what is written.
            portion = portions.pop(0)
            trouble = self._missing(portion)
            if trouble is None:
                next_offset, written, trouble = writer.write(portion)
                ends[portion.queue] = next_offset
                count += written
            if trouble is not None:
                break
        if trouble is not None and not ends:
            # Nothing was written: Kafka does not know of this transaction, and the producer ends with it.
            raise trouble
        writer.note(
            self._number,
            [position(queue.topic, queue.topic_id, queue.queue, offset) for queue, offset in ends.items()],
        )
        writer.commit()
        self._plan.kafka.over()
        self._plan.count(count)
        self._ends |= ends
        self._reached |= ends
        self._plan.progress.note(ends)
        if trouble is not None:
            raise trouble

    def _missing(self, portion: Portion) -> HalfmqError | None:
        lost = portion.first_kept - portion.start
        if lost <= 0:
            return None
        missing = MessagesMissing(
            f"{portion.queue.topic}/{portion.queue.queue}/{portion.start}",
            lost,
            f"retention took the messages before {portion.first_kept}",
        )
        if not self._plan.settings.skip_missing:
            return missing
        about = {"bridge": self._plan.name, "topic": portion.queue.topic}
        _log.warning("skipping, as skip_missing says: %s", missing, extra=about)
        return None
