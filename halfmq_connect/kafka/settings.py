"""Settings of the bridge, in both directions, checked where they are given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from client_core.arguments import check_count, check_seconds, check_text, refuse
from halfmq_connect.kafka.errors import ConfigurationError

__all__ = ["BridgeSettings", "SourceSettings", "kafka_client", "kafka_topic_name", "routes"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,50}")
_PLACE = re.compile(r"[a-zA-Z0-9._-]+/\d+/\d+")
_KAFKA_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OWN = {
    "acks": "all: what is acknowledged must not be lost",
    "batch.size": "made to fit the topics' limits",
    "enable.auto.commit": "off: positions are kept beside the records",
    "enable.idempotence": "on",
    "enable.partition.eof": "as needed",
    "group.id": "made of the bridge's name",
    "group.instance.id": "instance",
    "isolation.level": "read_committed",
    "message.max.bytes": "made to fit the topics' limits",
    "session.timeout.ms": "session_timeout",
    "transactional.id": "made of the bridge's name",
    "auto.offset.reset": "error: a gap must not be skipped",
}
"""Settings of Kafka's client that the bridge sets, and how."""


def kafka_client(given: Mapping[str, Any] | str) -> dict[str, Any]:
    """Settings of Kafka's client (librdkafka's names), from a mapping, or from an address alone.

    Raises:
        ConfigurationError: There is no address, or one of them is the bridge's own.
    """
    if isinstance(given, str):
        given = {"bootstrap.servers": given}
    if not isinstance(given, Mapping):
        refuse("kafka", "is host:port, or settings of Kafka's client by name", given)
    wanted = dict(given)
    if not wanted.get("bootstrap.servers"):
        msg = "where is Kafka? Set bootstrap.servers (--bootstrap-servers), such as 'localhost:9092'"
        raise ConfigurationError(msg, field="bootstrap.servers")
    for name in wanted:
        if name in _OWN:
            msg = f"{name} is set by the bridge ({_OWN[name]}); leave it out"
            raise ConfigurationError(msg, field=name)
    return wanted


def kafka_topic_name(topic: str, where: str = "topics") -> str:
    """A name that Kafka accepts.

    Raises:
        ConfigurationError: It does not.
    """
    if not isinstance(topic, str) or not _KAFKA_TOPIC.fullmatch(topic) or topic in {".", ".."}:
        msg = (
            f"{topic!r} is no name of a Kafka topic (letters, digits, '.', '_' and '-', 249 at most); map it to one:"
            " NAME=NAME-IN-KAFKA"
        )
        raise ConfigurationError(msg, field=where)
    return topic


def routes(topics: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """The mapping of topics: from a mapping, or from names that are the same on both sides.

    Raises:
        ConfigurationError: There is none, or a name is no text.
    """
    if isinstance(topics, str):
        topics = [topics]
    if not isinstance(topics, Mapping | Sequence):
        refuse("topics", "are names, or names by name", topics)
    wanted = dict(topics) if isinstance(topics, Mapping) else {name: name for name in topics}
    if not wanted:
        msg = "no topic is named (topics, --topic)"
        raise ConfigurationError(msg, field="topics")
    for start, end in wanted.items():
        if not all(isinstance(name, str) and name for name in (start, end)):
            msg = f"a topic goes to a topic, each named by a text, not {start!r} to {end!r}"
            raise ConfigurationError(msg, field="topics")
    return wanted


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """What both directions need.

    Attributes:
        skip_missing: Whether to go on where messages or records were deleted before they were carried.
        instance: Name of this replica, unique among those of the bridge, the same after a restart: it then gets its
            share back at once. None: a new replica each time, which gets its share after ``session_timeout`` if the
            one before it was killed.
        session_timeout: Seconds after which the share of a replica that gives no sign goes to the others.
        create_topics: Whether to create topics that do not exist.
        replication: Replicas of created topics of Kafka; None: Kafka's default.
    """

    skip_missing: bool = False
    instance: str | None = None
    session_timeout: float = 10.0
    create_topics: bool = False
    replication: int | None = None

    def __post_init__(self) -> None:
        """Checks the settings.

        Raises:
            ConfigurationError: One cannot work.
        """
        for name in ("skip_missing", "create_topics"):
            _check_flag(name, getattr(self, name))
        check_seconds("session_timeout", self.session_timeout, least=1.0, most=300.0)
        if self.instance is not None and not _is_name(self.instance):
            refuse("instance", "has 1 to 50 letters, digits, '-' and '_'", self.instance)
        if self.replication is not None:
            check_count("replication", self.replication, 100)


@dataclass(frozen=True, kw_only=True)
class BridgeSettings(_Shared):
    """Settings of the way to Kafka.

    Attributes:
        start: Where to begin with a topic that was never carried: ``earliest`` or ``latest``.
        begin_anew: Whether to begin as ``start`` says, too, where the topic of the bridge's positions was deleted.
        shards: Parts that the queues are divided into, and so how many replicas can share the work. It is fixed when
            the bridge first starts.
        max_records: Messages of a Kafka transaction, about, at most.
        max_bytes: Bytes that a shard reads ahead, of all its queues, and has in a transaction, with all of a message;
            it may be more by one answer of the broker: a message, however large, or some of 1 MiB together.
        linger: Seconds that a transaction waits for more messages, at most.
        too_large_to: A halfmq topic that messages go to that are over their Kafka topic's limit; None: stop.
        group: A consumer group of halfmq to report progress to, for its lag and for retention; None: none.
    """

    start: Literal["earliest", "latest"] = "earliest"
    begin_anew: bool = False
    shards: int = 4
    max_records: int = 5000
    max_bytes: int = 16 * 1024 * 1024
    linger: float = 0.02
    too_large_to: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        """Checks the settings.

        Raises:
            ConfigurationError: One cannot work.
        """
        super().__post_init__()
        _check_start(self.start)
        _check_flag("begin_anew", self.begin_anew)
        for name, most in (("shards", 1000), ("max_records", 1_000_000), ("max_bytes", 1 << 30)):
            check_count(name, getattr(self, name), most)
        check_seconds("linger", self.linger, least=0.0, most=10.0)
        for name, what in (("too_large_to", "a topic"), ("group", "a consumer group")):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name), f"is the name of {what} of halfmq")


@dataclass(frozen=True, kw_only=True)
class SourceSettings(_Shared):
    """Settings of the way back.

    Attributes:
        start: Where to begin with a partition that was never carried: ``earliest`` or ``latest``.
        key_as: What a record's key becomes: ``message_group`` (order is kept per key), ``key`` or ``none``.
        max_records: Records that are read and committed together, at most.
        skip_records: Records to leave out, ``topic/partition/offset``: those that halfmq refuses.
    """

    start: Literal["earliest", "latest"] = "earliest"
    key_as: Literal["message_group", "key", "none"] = "message_group"
    max_records: int = 5000
    skip_records: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        """Checks the settings.

        Raises:
            ConfigurationError: One cannot work.
        """
        super().__post_init__()
        _check_start(self.start)
        if self.key_as not in ("message_group", "key", "none"):
            refuse("key_as", "is message_group, key or none", self.key_as)
        check_count("max_records", self.max_records, 100_000)
        if not isinstance(self.skip_records, Set | list | tuple):
            refuse("skip_records", "is a list of topic/partition/offset", self.skip_records)
        for each in self.skip_records:
            if not isinstance(each, str) or not _PLACE.fullmatch(each):
                refuse("skip_records", "has entries topic/partition/offset", each)
        object.__setattr__(self, "skip_records", frozenset(self.skip_records))


def bridge_name(name: str) -> str:
    """A bridge's name.

    Raises:
        ConfigurationError: It has other characters, or too many.
    """
    if not _is_name(name):
        refuse("name", "has 1 to 50 letters, digits, '-' and '_'", name)
    return name


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _check_flag(name: str, given: object) -> None:
    if not isinstance(given, bool):
        refuse(name, "is true or false", given)


def _check_start(start: object) -> None:
    if start not in ("earliest", "latest"):
        refuse("start", "is earliest or latest", start)
