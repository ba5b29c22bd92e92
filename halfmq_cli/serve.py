"""`halfmq serve` and `halfmq migrate`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from broker.app import warn_of_readers
from broker.config_sources import load_config
from broker.errors import BrokerError
from broker.storage.engine.durability import open_database
from broker.storage.migrations import current, migrate
from broker.storage.migrations.views import create_views
from halfmq_cli import logs
from halfmq_cli.notifying import tell_ready
from halfmq_cli.serving import fail, run_broker, warn_of_arguments
from halfmq_cli.workers import run_workers

Database = Annotated[
    str | None, typer.Option(help="Database URL: mysql://user:password@host:3306/name, or sqlite:///file.")
]
DatabaseFile = Annotated[
    str | None, typer.Option(help="File with the database's URL: arguments are seen by all users of the machine.")
]
TablePrefix = Annotated[str | None, typer.Option(help="What the names of all tables begin with [nothing].")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file with a table [broker].")]

logger = logging.getLogger("halfmq.broker")


def serve(
    database: Database = None,
    database_file: DatabaseFile = None,
    cells: Annotated[
        str | None, typer.Option(help="Further databases to place topics in: name=URL, spaces between [none].")
    ] = None,
    table_prefix: TablePrefix = None,
    listen: Annotated[str | None, typer.Option(help="Address and port; port 0 takes a free one.")] = None,
    admin_listen: Annotated[
        str | None, typer.Option(help="Another one, for AdminService and reflection alone [none: they are there, too].")
    ] = None,
    config_file: ConfigFile = None,
    broker_id: Annotated[str | None, typer.Option(help="Name in logs and histories.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that share the address [1].")] = None,
    first_check: Annotated[float | None, typer.Option(help="Seconds from prepare to the first check [6].")] = None,
    check_interval: Annotated[float | None, typer.Option(help="Seconds between checks [30].")] = None,
    max_checks: Annotated[int | None, typer.Option(help="Checks before a transaction is parked [15].")] = None,
    lease: Annotated[float | None, typer.Option(help="Seconds a delivery belongs to its consumer [30].")] = None,
    queue_count: Annotated[int | None, typer.Option(help="Queues of a topic that names no number [4].")] = None,
    retention_hours: Annotated[float | None, typer.Option(help="Hours that messages are kept [72].")] = None,
    max_delay_hours: Annotated[float | None, typer.Option(help="Longest wait of a delayed message [24].")] = None,
    history_hours: Annotated[
        float | None, typer.Option(help="Hours that deliveries are kept for timelines; 0: not recorded [24].")
    ] = None,
    sink_hours: Annotated[
        float | None, typer.Option(help="Hours that half messages of a sink wait for their epoch [24].")
    ] = None,
    auto_create: Annotated[
        bool | None, typer.Option(help="Make unknown topics and consumer groups when first named [off].")
    ] = None,
    auto_create_groups: Annotated[
        bool | None, typer.Option(help="Make unknown consumer groups [with --auto-create and with --rocketmq].")
    ] = None,
    max_body_bytes: Annotated[int | None, typer.Option(help="Largest body of a message [4194304].")] = None,
    max_calls: Annotated[int | None, typer.Option(help="Calls under way at a time [5000].")] = None,
    max_streams: Annotated[int | None, typer.Option(help="Streams under way at a time [20000].")] = None,
    max_request_bytes: Annotated[int | None, typer.Option(help="Bytes of all requests under way [536870912].")] = None,
    client_calls: Annotated[int | None, typer.Option(help="Calls under way of one client [3/4 of max-calls].")] = None,
    client_streams: Annotated[
        int | None, typer.Option(help="Streams under way of one client [3/4 of max-streams].")
    ] = None,
    client_request_bytes: Annotated[
        int | None, typer.Option(help="Bytes of one client's requests under way [3/4 of max-request-bytes].")
    ] = None,
    client_connections: Annotated[
        int | None, typer.Option(help="Busy connections of one name or address; 0: any number [0].")
    ] = None,
    client_groups: Annotated[
        int | None, typer.Option(help="Groups that one client may make in an hour by naming them [1000].")
    ] = None,
    drain: Annotated[float | None, typer.Option(help="Seconds that calls may take to end after SIGTERM [10].")] = None,
    answer_timeout: Annotated[float | None, typer.Option(help="Seconds to wait for a statement's answer [30].")] = None,
    reconnect_timeout: Annotated[
        float | None,
        typer.Option("--reconnect-timeout", "--patience", help="Seconds to try to reach a lost database [10]."),
    ] = None,
    allow_unsafe_database: Annotated[
        bool | None, typer.Option(help="Start although the database can lose acknowledged commits [off].")
    ] = None,
    migrate: Annotated[bool | None, typer.Option(help="Create or upgrade the tables at the start [on].")] = None,
    tls_certificate: Annotated[str | None, typer.Option(help="Certificate chain (PEM file).")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Private key (PEM file).")] = None,
    tls_client_ca: Annotated[str | None, typer.Option(help="CA of client certificates (PEM file).")] = None,
    tls_optional: Annotated[
        bool | None, typer.Option(help="Serve clients without TLS, too, on the same port [off].")
    ] = None,
    access: Annotated[bool | None, typer.Option(help="Let in only known clients, to what rules allow [off].")] = None,
    access_tokens: Annotated[str | None, typer.Option(help="File with the hashes of bearer tokens [none].")] = None,
    access_certificates: Annotated[
        bool | None, typer.Option(help="The CN of a client's certificate is its name [off].")
    ] = None,
    access_without_tls: Annotated[
        bool | None, typer.Option(help="Accept tokens also without TLS, where others can read them [off].")
    ] = None,
    jwt_keys: Annotated[str | None, typer.Option(help="Public keys (JWKS) of JWTs: a file or an https URL.")] = None,
    jwt_audience: Annotated[str | None, typer.Option(help="What the claim aud of JWTs has to name.")] = None,
    jwt_issuer: Annotated[str | None, typer.Option(help="What their claim iss has to be [any].")] = None,
    jwt_clock_skew: Annotated[
        float | None, typer.Option(help="Seconds that the issuer's clock may differ [30].")
    ] = None,
    audit_days: Annotated[float | None, typer.Option(help="Days that records of who did what are kept [366].")] = None,
    rocketmq: Annotated[bool | None, typer.Option(help="Serve RocketMQ's official clients, too [off].")] = None,
    rocketmq_endpoints: Annotated[
        str | None, typer.Option(help="Addresses to announce to them; those that they use [none].")
    ] = None,
    rocketmq_keys: Annotated[
        str | None, typer.Option(help="File with access-key:secret-key lines; they must sign then [none].")
    ] = None,
    rocketmq_signature_window: Annotated[
        float | None,
        typer.Option(help="Seconds that the time of a signature may differ; 0: any time [0; 54000 with --access]."),
    ] = None,
    rocketmq_min_invisible: Annotated[
        float | None, typer.Option(help="Shortest invisible duration for RocketMQ's clients, seconds [10].")
    ] = None,
    console_listen: Annotated[
        str | None, typer.Option(help="Address and port for operators' web pages [none].")
    ] = None,
    console_hosts: Annotated[
        str | None, typer.Option(help="Names under which these are asked for, with commas between.")
    ] = None,
    traces: Annotated[
        bool | None, typer.Option(help="Send traces by OTLP to OTEL_EXPORTER_OTLP_ENDPOINT. [do not]")
    ] = None,
    metrics_listen: Annotated[
        str | None, typer.Option(help="Address and port, or unix:FILE, for metrics: GET /metrics [none].")
    ] = None,
    metrics_interval: Annotated[
        float | None, typer.Option(help="Seconds between two looks at the database for them [15].")
    ] = None,
    metrics_names: Annotated[
        int | None, typer.Option(help="Topics and groups that each metric tells apart [1000].")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json [text].")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error [info].")] = None,
) -> None:
    """Run a broker.

    Every option can also be set by HALFMQ_<OPTION> in the environment, or in the file named by --config.
    """
    arguments = dict(locals())
    file = arguments.pop("config_file")
    try:
        renamed: list[str] = []
        config = load_config(arguments, file=file, renamed=renamed)
        logs.set_up(config.log_format, config.log_level)
        for warning in renamed:
            logger.warning("%s", warning)
        warn_of_readers("database_file", database_file or os.environ.get("HALFMQ_DATABASE_FILE", ""))
        served = partial(_served, database)
        if config.workers == 1:
            run_broker(config, served=served)
        elif not asyncio.run(run_workers(config, served)):
            raise SystemExit(1)
    except BrokerError as error:
        fail(error)


def _served(database: str | None) -> None:
    warn_of_arguments(database)
    tell_ready()


def migrate_tables(
    database: Database = None,
    database_file: DatabaseFile = None,
    table_prefix: TablePrefix = None,
    config_file: ConfigFile = None,
    views: Annotated[bool, typer.Option("--views", help="Create the views for SQL again, too.")] = False,
) -> None:
    """Create or upgrade the database's tables."""
    arguments = {"database": database, "database_file": database_file, "table_prefix": table_prefix}
    try:
        config = load_config(arguments, file=config_file)
        opened, _ = open_database(
            config.database,
            answer_timeout=config.answer_timeout,
            allow_unsafe=True,
            table_prefix=config.table_prefix,
        )
        before = current(opened)
        migrate(opened)
        if views:
            create_views(opened)
        sys.stdout.write(f"{opened.shown_url}: {before or 'empty'} -> {current(opened)}\n")
    except BrokerError as error:
        fail(error)
