"""The way to Kafka: topics of halfmq, carried exactly once, in order per message group."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from client_core.connection import BackgroundRunner, BrokerLink
from halfmq_connect.kafka.beginning import PositionsTopic
from halfmq_connect.kafka.cluster import Cluster
from halfmq_connect.kafka.doors import existing_topics, hurried, patiently
from halfmq_connect.kafka.ending import Patience
from halfmq_connect.kafka.membership import Membership
from halfmq_connect.kafka.plan import Plan
from halfmq_connect.kafka.positions import positions_topic
from halfmq_connect.kafka.registry import register
from halfmq_connect.kafka.settings import BridgeSettings, bridge_name, kafka_client, kafka_topic_name, routes
from halfmq_connect.kafka.shard import Shard
from halfmq_connect.kafka.starting import note_latest
from halfmq_connect.kafka.watching import Watch
from producer_sdk import Producer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from client_core.connection import Endpoint, TlsConfig
    from halfmq_connect.kafka.feed import QueueAt
    from halfmq_connect.kafka.registry import Edge

__all__ = ["KafkaBridge"]

_log = logging.getLogger("halfmq.kafka")


class KafkaBridge:
    """Carries topics of halfmq to Kafka: each message exactly once, for readers of committed records.

    Several with the same name, in processes of their own, share the work.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        kafka: Mapping[str, Any] | str,
        topics: Mapping[str, str] | Sequence[str],
        *,
        name: str,
        settings: BridgeSettings | None = None,
        tls: TlsConfig | None = None,
    ) -> None:
        """Checks the settings; nothing is connected yet.

        Args:
            endpoint: Where halfmq's brokers listen.
            kafka: Where Kafka listens, ``host:port``, or settings of its client (librdkafka's names).
            topics: By topic of halfmq, the topic of Kafka; or names that are the same on both sides.
            name: Name of the bridge. Its positions in Kafka are kept under it.
            settings: The others; None: their defaults.
            tls: How to encrypt the connection to halfmq; None: not at all.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        self._name = bridge_name(name)
        self._client = kafka_client(kafka)
        self._settings = settings or BridgeSettings()
        self._routes = routes(topics)
        for target in self._routes.values():
            kafka_topic_name(target)
        self._connection = hurried(endpoint, tls)
        self._stopping = threading.Event()
        self._shards: dict[int, Shard] = {}
        self._plan: Plan | None = None

    @property
    def carried(self) -> int:
        """Messages that this replica has carried, committed in Kafka."""
        return 0 if self._plan is None else self._plan.carried

    def outages(self) -> dict[str, bool]:
        """Which systems do not answer, as far as is known, by name."""
        plan = self._plan
        return {} if plan is None else {"kafka": plan.kafka.is_away, "halfmq": plan.halfmq.is_away}

    def lag(self) -> int | None:
        """Messages of this replica's queues that are not carried yet; None where it has none, or has not begun.

        Raises:
            HalfmqError: halfmq refuses to tell, or does not answer.
            TimeoutError: It does not answer in time.
        """
        plan = self._plan
        if plan is None or self._stopping.is_set():
            return None
        reached: dict[QueueAt, int] = {}
        for shard in list(self._shards.values()):
            reached |= shard.reached
        return plan.left(reached) if reached else None

    def stop(self) -> None:
        """Has run() end, after the transactions under way if these end within seconds.

        It can be called from a signal handler.
        """
        self._stopping.set()

    def run(self) -> None:
        """Carries messages until stop() is called.

        While Kafka or halfmq do not answer it waits for them.

        Raises:
            ConfigurationError: A topic does not exist, or the bridge would be part of a loop.
            MessageTooLarge: A message is over its Kafka topic's limit.
            MessagesMissing: Retention took messages before they were carried.
            BridgeError: Something else stops it; see halfmq_connect.kafka.errors.
        """
        runner = BackgroundRunner("KafkaBridge")
        link = BrokerLink(self._connection)
        # A diverted message without an answer is sent again: nobody waits for it at the end.
        producer = Producer(self._connection, close_grace=1.0)
        cluster = Cluster(self._client, self._settings.replication, Patience(self._stopping))
        positions = PositionsTopic(cluster, self._client, self._name)
        plan = Plan(
            self._name,
            self._client,
            self._routes,
            self._settings,
            cluster,
            link,
            runner,
            positions,
            producer,
            self._stopping,
        )
        self._plan = plan
        try:
            if patiently(lambda: self._prepare(plan), plan.kafka, plan.halfmq, self._stopping):
                patiently(lambda: self._work(plan), plan.kafka, plan.halfmq, self._stopping)
        finally:
            plan.progress.tell_rest()
            producer.close()
            runner.run(link.close())
            runner.close()

    def _prepare(self, plan: Plan) -> bool:
        existing_topics(plan)
        register(plan.cluster, self._client, f"to-kafka/{self._name}", self._edges(plan))
        is_new = plan.positions.begin(self._settings.shards, anew=self._settings.begin_anew)
        if self._settings.start == "latest":
            note_latest(plan, anew=is_new)
        return True

    def _edges(self, plan: Plan) -> Iterator[Edge]:
        """What goes where, also what is diverted because it is too large."""
        nodes = {topic: f"halfmq:{plan.queue_offsets(topic)[0].topic_id}" for topic in self._routes}
        for topic, target in self._routes.items():
            yield nodes[topic], f"kafka:{target}"
        diverted = self._settings.too_large_to
        if diverted is not None:
            end = f"halfmq:{plan.queue_offsets(diverted)[0].topic_id}"
            # A message of that topic itself that is too large stops it.
            yield from ((node, end) for node in nodes.values() if node != end)

    def _work(self, plan: Plan) -> None:
        watch = Watch(plan.cluster, plan.kafka)
        membership = Membership(
            watch.watching(self._client),
            positions_topic(self._name),
            positions_topic(self._name),
            instance=self._settings.instance,
            session_timeout=self._settings.session_timeout,
            gained=lambda numbers: self._gained(plan, numbers),
            lost=self._lost,
        )
        try:
            while not self._stopping.is_set():
                membership.poll(0.2)
                if watch.look():
                    plan.positions.look()
                plan.progress.tell()
                for shard in self._shards.values():
                    if shard.failure is not None:
                        raise shard.failure
        finally:
            self._lost(list(self._shards))
            membership.close()

    def _gained(self, plan: Plan, numbers: Collection[int]) -> None:
        _log.info("%s: carrying shards %s", self._name, sorted(numbers), extra={"bridge": self._name})
        for number in numbers:
            self._shards[number] = Shard(number, plan)

    def _lost(self, numbers: Collection[int]) -> None:
        ended = [self._shards.pop(number) for number in numbers if number in self._shards]
        for shard in ended:
            shard.stop()
        for shard in ended:
            shard.join(self._stopping)
