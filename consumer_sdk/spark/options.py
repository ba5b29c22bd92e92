"""The options of the data source, read and checked before anything is connected."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from client_core.connection import Connection, RetryConfig, TlsConfig
from client_core.filters import SqlFilter, TagFilter
from client_core.ids import new_id
from consumer_sdk.errors import ConfigurationError
from consumer_sdk.spark.bounds import bound_of, topic_ids_of
from consumer_sdk.spark.option_values import bytes_of, count_of, flag_of, known_options, seconds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client_core.filters import MessageFilter
    from consumer_sdk.spark.bounds import Bound

__all__ = ["BrokerOptions", "ReadOptions", "WriteOptions"]

_CONNECTION = ("endpoint", "tls", "tlsRootCertificates", "tlsClientCertificate", "tlsClientKey", "tlsServerName")
_READ = (
    *_CONNECTION,
    "topic",
    "topics",
    "topicPattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "group",
    "tagFilter",
    "sqlFilter",
    "messagesPerRequest",
)
_WRITE = (*_CONNECTION, "topic", "sinkId", "onCheckpointReset", "writeId", "writeNumber", "writeQuery")
_SINK_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,80}")
_TOPICS = ("topic", "topics", "topicPattern", "assign")
DEFAULT_OFFSETS_PER_TRIGGER = 50_000
DEFAULT_TRIGGER_DELAY = 15 * 60.0
DEFAULT_MESSAGES_PER_REQUEST = 8192
LARGEST_REQUEST = 100_000
_LAST_NUMBER = 2**63 - 1


@dataclass(frozen=True)
class BrokerOptions:
    """How to reach the brokers. It is sent to executors, so it holds the files' names, not their contents.

    Attributes:
        endpoint: One ``host:port`` or several, with commas between them.
        tls: Whether the connection is encrypted.
        root_certificates, client_certificate, client_key: Files in PEM form; None: gRPC's default authorities, no
            client certificate.
        server_name: Name to expect in the broker's certificate, if not the host's.
    """

    endpoint: str
    tls: bool = False
    root_certificates: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None
    server_name: str | None = None

    @classmethod
    def of(cls, endpoint: str, options: Mapping[str, object]) -> BrokerOptions:
        """Reads an endpoint and the options of encryption.

        Raises:
            ConfigurationError: An option is unknown or invalid; the message is one line.
        """
        given = {name: str(value) for name, value in options.items() if value is not None}
        return _connection(known_options({"endpoint": endpoint} | given, _CONNECTION))

    def connection(self, retry: RetryConfig | None = None) -> Connection:
        """The connection, with the files' contents.

        Raises:
            ConfigurationError: A file cannot be read here, or a certificate comes without its key.
        """
        return Connection(self.endpoint, self._tls(), retry or RetryConfig())

    def _tls(self) -> TlsConfig | None:
        if not self.tls:
            return None
        return TlsConfig(
            root_certificates=_pem("tlsRootCertificates", self.root_certificates),
            client_certificate=_pem("tlsClientCertificate", self.client_certificate),
            client_key=_pem("tlsClientKey", self.client_key),
            server_name=self.server_name,
        )


@dataclass(frozen=True)
class ReadOptions:
    """Settings of a reader.

    Attributes:
        connection: How to reach the brokers.
        topics: Names of the topics; empty where there is a pattern.
        topic_pattern: Regular expression that a topic's whole name matches.
        assigned: The queues to read of each topic; None: all of them, also later ones.
        start: Where to start in the queues that exist at the first start; later ones are read from their first message.
        end: Where a batch ends.
        min_offsets_per_trigger: Messages that a micro-batch waits for; None: it does not wait.
        max_trigger_delay: Seconds after the last micro-batch at which the next one does not wait any more.
        max_offsets_per_trigger: Messages of a micro-batch, at most.
        max_bytes_per_trigger: Maximum bytes of the bodies of a micro-batch, but at least one message of every queue;
            None: no limit.
        min_partitions: Ranges are split until there are this many, as far as there are messages.
        max_records_per_partition: Messages of a task, at most; None: no limit.
        fail_on_data_loss: Whether messages that were deleted before they were read are an error.
        group: Consumer group whose progress a streaming query reports.
        wanted: Filter; None: all messages.
        messages_per_request: Messages per request.
        topic_ids: By option, the identities of its offsets' topics, if given.
    """

    connection: BrokerOptions
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    assigned: Mapping[str, frozenset[int]] | None = None
    start: Bound | None = None
    end: Bound = "latest"
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = DEFAULT_TRIGGER_DELAY
    max_offsets_per_trigger: int = DEFAULT_OFFSETS_PER_TRIGGER
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    group: str | None = None
    wanted: MessageFilter | None = None
    messages_per_request: int = DEFAULT_MESSAGES_PER_REQUEST
    topic_ids: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, options: Mapping[str, str]) -> ReadOptions:
        """Parses options as given to Spark, ignoring case.

        Raises:
            ConfigurationError: An option is unknown, missing or invalid; the message is one line.
        """
        given = known_options(options, _READ)
        topics, pattern, assigned = _topics(given)
        least, most = _per_trigger(given)
        return cls(
            connection=_connection(given),
            topics=topics,
            topic_pattern=pattern,
            assigned=assigned,
            start=bound_of(given, "starting", topics),
            end=bound_of(given, "ending", topics) or "latest",
            min_offsets_per_trigger=least,
            max_trigger_delay=seconds_of(given, "maxTriggerDelay", default=DEFAULT_TRIGGER_DELAY),
            max_offsets_per_trigger=most,
            max_bytes_per_trigger=bytes_of(given, "maxBytesPerTrigger"),
            min_partitions=count_of(given, "minPartitions"),
            max_records_per_partition=count_of(given, "maxRecordsPerPartition"),
            fail_on_data_loss=flag_of(given, "failOnDataLoss", default=True),
            group=given.get("group") or None,
            wanted=_filter(given),
            messages_per_request=count_of(given, "messagesPerRequest", LARGEST_REQUEST) or DEFAULT_MESSAGES_PER_REQUEST,
            topic_ids={name: topic_ids_of(given.get(name)) for name in ("startingOffsets", "endingOffsets")},
        )


@dataclass(frozen=True)
class WriteOptions:
    """Settings of a writer.

    Attributes:
        connection: How to reach the brokers.
        sink: Name under which the broker records commits.
        topic: Topic of rows that name none; None: from the column.
        take_over: Whether a sink of another query is taken over.
        query_id: Of a batch: the source of its epoch numbers: a query, otherwise its own writeId.
        number: Of a batch: the number of the part under its writeId; its epoch.
        repeatable: Of a batch: writing it again has no effect, because the user named the writeId.
    """

    connection: BrokerOptions
    sink: str
    topic: str | None = None
    take_over: bool = False
    query_id: str = ""
    number: int = 0
    repeatable: bool = False

    @classmethod
    def read(cls, options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
        """Parses options as given to Spark, ignoring case.

        Raises:
            ConfigurationError: An option is unknown, missing or invalid; the message is one line.
        """
        given = known_options(options, _WRITE)
        topic = given.get("topic") or None
        if streaming:
            for name in ("writeId", "writeNumber", "writeQuery"):
                if name in given:
                    msg = f"{name} is for batches; a stream has a sinkId, and Spark numbers its micro-batches"
                    raise ConfigurationError(msg, field=name)
            return cls(_connection(given), _sink(given, "sinkId"), topic, _reset(given))
        if "sinkId" in given:
            msg = "sinkId is for streams; give a batch a writeId if it may be repeated"
            raise ConfigurationError(msg, field="sinkId")
        _whole(given)
        write_id = _sink(given, "writeId") if given.get("writeId") else new_id()
        return cls(
            _connection(given),
            f"batch-{write_id}",
            topic,
            _reset(given),
            query_id=given.get("writeQuery") or write_id,
            number=count_of(given, "writeNumber", _LAST_NUMBER, least=0) or 0,
            repeatable=bool(given.get("writeId")),
        )


def _whole(given: Mapping[str, str]) -> None:
    """Refuses options of batches that have no effect without another one."""
    for name, without, why in (
        ("writeNumber", "writeId", "the name under which the broker remembers the last number"),
        ("writeQuery", "writeNumber", "which it gives"),
        ("onCheckpointReset", "writeQuery", "the query whose checkpoint that is"),
    ):
        if name in given and not given.get(without):
            msg = f"{name} is given without a {without}, {why}"
            raise ConfigurationError(msg, field=name)


def _sink(given: Mapping[str, str], option: str) -> str:
    name = given.get(option, "")
    if not name:
        msg = (
            "the option sinkId is missing: exactly-once output needs a name that stays when the query restarts, and"
            " that no other query has"
        )
        raise ConfigurationError(msg, field=option)
    if not _SINK_NAME.fullmatch(name):
        msg = f"{option} {name!r} must have 1 to 80 of the characters a-z, A-Z, 0-9, '-', '_', '%' and '|'"
        raise ConfigurationError(msg, field=option)
    return name


def _reset(given: Mapping[str, str]) -> bool:
    word = given.get("onCheckpointReset", "fail").lower()
    if word not in {"fail", "continue"}:
        msg = f"onCheckpointReset {word!r} must be fail or continue"
        raise ConfigurationError(msg, field="onCheckpointReset")
    return word == "continue"


def _per_trigger(given: Mapping[str, str]) -> tuple[int | None, int]:
    """The least and the greatest number of messages of a micro-batch."""
    least = count_of(given, "minOffsetsPerTrigger")
    most = count_of(given, "maxOffsetsPerTrigger")
    if least is None:
        if "maxTriggerDelay" in given:
            msg = "maxTriggerDelay is given without a minOffsetsPerTrigger, for which a micro-batch waits that long"
            raise ConfigurationError(msg, field="maxTriggerDelay")
        return None, most or DEFAULT_OFFSETS_PER_TRIGGER
    if most is not None and least > most:
        msg = f"minOffsetsPerTrigger {least} is above maxOffsetsPerTrigger {most}; give a smaller one"
        raise ConfigurationError(msg, field="minOffsetsPerTrigger")
    return least, most or max(least, DEFAULT_OFFSETS_PER_TRIGGER)


def _assigned(text: str) -> dict[str, frozenset[int]]:
    try:
        read = json.loads(text)
    except ValueError:
        read = None
    right = isinstance(read, dict) and all(
        topic and isinstance(queues, list) and queues and all(type(queue) is int and queue >= 0 for queue in queues)
        for topic, queues in read.items()
    )
    if not right or not read:
        msg = f'assign {text!r} must name queues of topics, such as {{"orders": [0, 1]}}'
        raise ConfigurationError(msg, field="assign")
    return {topic: frozenset(queues) for topic, queues in read.items()}


def _topics(given: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, Mapping[str, frozenset[int]] | None]:
    named = [name for name in _TOPICS if given.get(name)]
    if len(named) != 1:
        what = " and ".join(named) if named else "none of them"
        msg = f"name what to read by one of topic, topics, topicPattern and assign; {what} is given"
        raise ConfigurationError(msg, field="topic")
    if named == ["assign"]:
        assigned = _assigned(given["assign"])
        return tuple(assigned), None, assigned
    if named == ["topicPattern"]:
        pattern = given["topicPattern"]
        try:
            re.compile(pattern)
        except re.error as error:
            msg = f"topicPattern {pattern!r} is no regular expression: {error}"
            raise ConfigurationError(msg, field="topicPattern") from None
        return (), pattern, None
    topics = tuple(dict.fromkeys(name.strip() for name in given[named[0]].split(",")))
    if named == ["topic"] and len(topics) > 1:
        msg = f"topic {given['topic']!r} names several; use topics for them"
        raise ConfigurationError(msg, field="topic")
    if not all(topics):
        msg = f"{named[0]} {given[named[0]]!r} has an empty name between its commas"
        raise ConfigurationError(msg, field=named[0])
    return topics, None, None


def _connection(given: Mapping[str, str]) -> BrokerOptions:
    if not given.get("endpoint"):
        msg = "the option endpoint is missing; name a broker, such as localhost:8085"
        raise ConfigurationError(msg, field="endpoint")
    files = {name: given.get(name) or None for name in _CONNECTION[2:]}
    tls = flag_of(given, "tls", default=any(files.values()))
    if not tls and any(files.values()):
        named = next(name for name, value in files.items() if value)
        msg = f"{named} is given, but tls is false; leave one of them out"
        raise ConfigurationError(msg, field="tls")
    options = BrokerOptions(given["endpoint"], tls, *files.values())
    options.connection()
    return options


def _pem(option: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        msg = f"{option} {path!r} cannot be read: {error.strerror}; every executor needs the file at this place"
        raise ConfigurationError(msg, field=option) from None


def _filter(given: Mapping[str, str]) -> MessageFilter | None:
    tags, condition = given.get("tagFilter"), given.get("sqlFilter")
    if tags and condition:
        msg = "tagFilter and sqlFilter are both given; a condition can ask for tags too: halfmq.tag IN ('a', 'b')"
        raise ConfigurationError(msg, field="sqlFilter")
    if tags:
        return TagFilter(tags)
    return SqlFilter(condition) if condition else None
