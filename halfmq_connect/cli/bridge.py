"""`halfmq bridge kafka`, `halfmq bridge from-kafka` and `halfmq bridge forget`."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeAlias

import typer

from client_core.connection import TlsConfig
from client_core.errors import ConfigurationError, HalfmqError
from halfmq_connect.cli.logs import LogFormat, LogLevel, set_up_log
from halfmq_connect.cli.metrics import MetricsListen, metrics_at, of_bridge
from halfmq_connect.kafka import BridgeSettings, KafkaBridge, KafkaSource, SourceSettings
from halfmq_connect.kafka.cluster import Cluster
from halfmq_connect.kafka.configuration import Configuration
from halfmq_connect.kafka.doors import once
from halfmq_connect.kafka.registry import forget as forget_bridge
from halfmq_connect.kafka.settings import kafka_client

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["forget", "from_kafka", "kafka"]

Name: TypeAlias = Annotated[
    str | None, typer.Option(help="Name of the bridge: its positions are kept under it. The same in each run.")
]
Topics: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--topic", help="A topic, or NAME=NAME-THERE if its name there is another; repeatable."),
]
Servers: TypeAlias = Annotated[
    str | None, typer.Option(help="Where Kafka listens, host:port; several with commas.", envvar="HALFMQ_KAFKA")
]
Endpoint: TypeAlias = Annotated[
    str | None,
    typer.Option(help="A broker, host:port, or several with commas [localhost:8085].", envvar="HALFMQ_ENDPOINT"),
]
Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", help="A TOML file with settings, topics and [kafka].", metavar="FILE")
]
Setting: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--kafka", help="A setting of Kafka's client (librdkafka), NAME=VALUE; repeatable."),
]
RootCertificates: TypeAlias = Annotated[
    Path | None, typer.Option(help="PEM file of the authorities to trust; encrypts the way to halfmq.", metavar="FILE")
]
SkipMissing: TypeAlias = Annotated[
    bool | None, typer.Option("--skip-missing", help="Go on where messages were deleted before they were carried.")
]
CreateTopics: TypeAlias = Annotated[
    bool | None, typer.Option("--create-topics", help="Create topics that do not exist where they go to.")
]
Start: TypeAlias = Annotated[
    str | None, typer.Option(help="Where to begin with what was never carried: earliest or latest [earliest].")
]
Instance: TypeAlias = Annotated[
    str | None, typer.Option(help="Name of this replica; after a restart it goes on at once.")
]
SessionTimeout: TypeAlias = Annotated[
    float | None, typer.Option(help="Seconds after which a silent replica's share goes to others [10].")
]


class _Runs(Protocol):
    @property
    def carried(self) -> int: ...
    def run(self) -> None: ...
    def stop(self) -> None: ...


def kafka(
    name: Name = None,
    topic: Topics = None,
    bootstrap_servers: Servers = None,
    endpoint: Endpoint = None,
    config: Config = None,
    kafka_setting: Setting = None,
    start: Start = None,
    begin_anew: Annotated[
        bool | None, typer.Option("--begin-anew", help="Begin again where the topic of its positions was deleted.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="Parts that replicas can share; fixed at the first start [4].")
    ] = None,
    max_records: Annotated[int | None, typer.Option(help="Messages of a transaction, about [5000].")] = None,
    linger: Annotated[float | None, typer.Option(help="Seconds that a transaction waits for more [0.02].")] = None,
    too_large_to: Annotated[
        str | None, typer.Option(help="A halfmq topic for messages over Kafka's limit; otherwise it stops.")
    ] = None,
    skip_missing: SkipMissing = None,
    create_topics: CreateTopics = None,
    replication: Annotated[
        int | None, typer.Option(help="Replicas of topics that are created [Kafka's default].")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="A halfmq group to report to; with keep_unread retention waits for it.")
    ] = None,
    instance: Instance = None,
    session_timeout: SessionTimeout = None,
    tls_root_certificates: RootCertificates = None,
    metrics_listen: MetricsListen = None,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Carry topics to Kafka: each message exactly once, in order per message group.

    It runs until SIGTERM or SIGINT. Several with one name share the work.
    """
    given = {
        "start": start,
        "begin_anew": begin_anew,
        "shards": shards,
        "max_records": max_records,
        "linger": linger,
        "too_large_to": too_large_to,
        "skip_missing": skip_missing,
        "create_topics": create_topics,
        "replication": replication,
        "group": group,
        "instance": instance,
        "session_timeout": session_timeout,
    }
    with _told("kafka"):
        read = Configuration.read(config, BridgeSettings)
        wanted = read.with_options(name, topic, bootstrap_servers, endpoint, kafka_setting, given)
        set_up_log(log_format, log_level, bridge=wanted.name)
        bridge = KafkaBridge(
            wanted.endpoint,
            wanted.kafka,
            wanted.topics,
            name=wanted.name,
            settings=BridgeSettings(**wanted.settings),
            tls=_tls(tls_root_certificates),
        )
        with metrics_at(metrics_listen, lambda: of_bridge(wanted.name, "to_kafka", bridge)):
            _run(bridge)


def from_kafka(
    name: Name = None,
    topic: Topics = None,
    bootstrap_servers: Servers = None,
    endpoint: Endpoint = None,
    config: Config = None,
    kafka_setting: Setting = None,
    start: Start = None,
    key_as: Annotated[
        str | None, typer.Option(help="What a key becomes: message_group, key or none [message_group].")
    ] = None,
    max_records: Annotated[int | None, typer.Option(help="Records that are published together [5000].")] = None,
    skip_missing: SkipMissing = None,
    skip_record: Annotated[
        list[str] | None, typer.Option(help="A record to leave out, topic/partition/offset; repeatable.")
    ] = None,
    create_topics: CreateTopics = None,
    instance: Instance = None,
    session_timeout: SessionTimeout = None,
    tls_root_certificates: RootCertificates = None,
    metrics_listen: MetricsListen = None,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Carry topics of Kafka to halfmq: each committed record exactly once, in order per key.

    It runs until SIGTERM or SIGINT. Several with one name share the partitions.
    """
    given = {
        "start": start,
        "key_as": key_as,
        "max_records": max_records,
        "skip_missing": skip_missing,
        "skip_records": frozenset(skip_record) if skip_record else None,
        "create_topics": create_topics,
        "instance": instance,
        "session_timeout": session_timeout,
    }
    with _told("from-kafka"):
        read = Configuration.read(config, SourceSettings)
        wanted = read.with_options(name, topic, bootstrap_servers, endpoint, kafka_setting, given)
        set_up_log(log_format, log_level, bridge=wanted.name)
        source = KafkaSource(
            wanted.endpoint,
            wanted.kafka,
            wanted.topics,
            name=wanted.name,
            settings=SourceSettings(**wanted.settings),
            tls=_tls(tls_root_certificates),
        )
        with metrics_at(metrics_listen, lambda: of_bridge(wanted.name, "from_kafka", source)):
            _run(source)


def forget(
    bridge: Annotated[str, typer.Argument(help="to-kafka/NAME or from-kafka/NAME.")],
    bootstrap_servers: Servers = None,
    config: Config = None,
    kafka_setting: Setting = None,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Forget a bridge that no longer runs: it then does not count when loops are looked for. Its positions stay."""
    with _told("forget"):
        set_up_log(log_format, log_level, bridge=bridge)
        read = Configuration.read(config, SourceSettings if bridge.startswith("from-kafka/") else BridgeSettings)
        client = kafka_client(read.with_options(bridge, None, bootstrap_servers, None, kafka_setting, {}).kafka)
        once(lambda: forget_bridge(Cluster(client, None), client, bridge))


def _tls(root_certificates: Path | None) -> TlsConfig | None:
    if root_certificates is None:
        return None
    try:
        return TlsConfig(root_certificates=root_certificates.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{root_certificates}: {error.strerror}", field="tls_root_certificates") from error


def _run(bridge: _Runs) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: bridge.stop())
    bridge.run()
    typer.echo(f"carried {bridge.carried}", err=True)


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Errors of halfmq end the command with one line and status 1, or 2 for a setting."""
    try:
        yield
    except HalfmqError as error:
        typer.echo(f"halfmq bridge {name}: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, ConfigurationError) else 1) from error
