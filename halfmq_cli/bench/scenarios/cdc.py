"""`halfmq bench cdc`."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from broker.errors import BrokerError, ConfigurationError
from consumer_sdk import QueueReader
from halfmq_cli.bench.databases import side_by_side, with_tables
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess, Client
from halfmq_cli.bench.report import micros_each, percentile, print_figures
from halfmq_cli.serving import fail
from producer_sdk import Admin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfmq_connect.cdc.config import CdcSettings
    from halfmq_connect.cdc.database import Source

TOPIC = "bench-changes"
SERVER_IDS = 4_000_000_000
LONGEST = 600.0
SENDS_SECONDS = 3.0


def cdc(
    source: Annotated[str, typer.Option(help="URL of a server with a binary log, whose changes are published.")],
    database: DatabaseUrl = None,
    rows: Annotated[int, typer.Option(min=1000, help="Rows that are caught up with.")] = 100_000,
    rows_per_transaction: Annotated[int, typer.Option(min=1, max=1000, help="Rows of a transaction.")] = 10,
    size: Size = 100,
    rate: Annotated[int, typer.Option(min=1, help="Rows a second while the lag is measured.")] = 500,
    seconds: Annotated[float, typer.Option(min=1, help="How long the lag is measured.")] = 10.0,
    json_output: Json = False,
) -> None:
    """Measure how fast changes of a table are published, and how late, next to what its parts do alone.

    The floors, in the same run: the library mysql-replication, which reads and decodes the same log and publishes
    nothing; the reader of this package alone; and ordinary messages of the same size, sent without a source.
    """
    try:
        if find_spec("pymysqlreplication") is None:
            raise ConfigurationError(
                "The library to compare with is missing: pip install mysql-replication", field="bench"
            )
        with ExitStack() as stack:
            (url,), shown = stack.enter_context(side_by_side(database, 1))
            stack.enter_context(with_tables(url))
            broker = stack.enter_context(BrokerProcess(url))
            with Admin(broker.endpoint) as admin:
                admin.create_topic(TOPIC)
            table = stack.enter_context(_table(source, broker.endpoint))
            figures = _catch_up(table, broker, rows, rows_per_transaction, size)
            figures |= _lag(table, broker.endpoint, rate, rows_per_transaction, size, seconds)
            body = figures.pop("body_bytes")
            producer = stack.enter_context(Client("producer", broker.endpoint, in_flight=256, size=body))
            producer.ask(1.0)
            answer = producer.ask(SENDS_SECONDS)
            figures["sends_per_s"] = round(answer["sent"] / answer["seconds"], 1)
            figures["body_bytes"] = body
            shown_source = f"{table.source.kind} {table.source.version}"
    except BrokerError as error:
        fail(error)
    figures["ratio"] = round(figures["rows_per_s"] / min(figures["library_rows_per_s"], figures["sends_per_s"]), 3)
    figures |= {"rows": rows, "rows_per_transaction": rows_per_transaction, "source": shown_source, "database": shown}
    print_figures("cdc", figures, as_json=json_output)


class _Table:
    """A table of the source, and the subscription to it."""

    def __init__(self, source: Source, settings: CdcSettings, name: str) -> None:
        self.source = source
        self.settings = settings
        self._name = name
        self._next = 0

    def insert(self, count: int, size: int) -> None:
        """One transaction; each row has its time."""
        note = os.urandom(size // 2).hex()
        first, self._next = self._next, self._next + count
        now = time.time_ns() // 1000
        values = ", ".join(f"({first + index}, {now}, 12.50, '{note}')" for index in range(count))
        self.source.ask(f"INSERT INTO {self._name} VALUES {values}")


@contextmanager
def _table(url: str, endpoint: str) -> Iterator[_Table]:
    from halfmq_connect.cdc.checks import check_server  # noqa: PLC0415 - only this command needs its libraries
    from halfmq_connect.cdc.config import settings_of  # noqa: PLC0415
    from halfmq_connect.cdc.database import Source  # noqa: PLC0415
    from halfmq_connect.cdc.errors import CdcError, WrongSetting  # noqa: PLC0415

    parts = urlsplit(url)
    name = f"halfmq_bench_{secrets.token_hex(4)}"
    told = {
        "name": name,
        "broker": {"endpoint": endpoint},
        "database": {
            "hosts": [f"{parts.hostname}:{parts.port or 3306}"],
            "user": parts.username or "root",
            "password_env": "password",
            "server_id": SERVER_IDS + secrets.randbelow(1000),
        },
        "table": [{"match": f"{name}.*", "topic": TOPIC}],
    }
    try:
        settings = settings_of(told, {"password": parts.password or ""})
        source = Source(settings.database, settings.database.hosts[0])
        check_server(source)
    except CdcError as error:
        field = error.field if isinstance(error, WrongSetting) else "source"
        raise ConfigurationError(str(error), field=field) from None
    source.ask(f"CREATE DATABASE {name}")
    try:
        source.ask(
            f"CREATE TABLE {name}.rows_of_it (id BIGINT PRIMARY KEY, at BIGINT NOT NULL, amount DECIMAL(10,2),"
            " note VARCHAR(5000))"
        )
        yield _Table(source, settings, f"{name}.rows_of_it")
    finally:
        source.ask(f"DROP DATABASE {name}")
        source.close()


def _catch_up(table: _Table, broker: BrokerProcess, rows: int, each: int, size: int) -> dict[str, Any]:
    before = str(table.source.executed())
    with _running(table.settings):
        pass  # Now it has a position.
    for first in range(0, rows, each):
        table.insert(min(each, rows - first), size)
    library = _library(table, before, rows)
    reader, body = _reader(table, before, rows)
    cpu, own, began = broker.cpu_seconds(), time.process_time(), time.perf_counter()
    with _running(table.settings, rows) as capture:
        took = time.perf_counter() - began
    return {
        "rows_per_s": round(rows / took, 1),
        "library_rows_per_s": round(library, 1),
        "reader_rows_per_s": round(reader, 1),
        "client_cpu_us": micros_each(time.process_time() - own, rows),
        "broker_cpu_us": micros_each(broker.cpu_seconds() - cpu, rows),
        "epochs": capture.progress.epochs,
        "body_bytes": body,
    }


@contextmanager
def _running(settings: CdcSettings, rows: int = 0) -> Iterator[Any]:
    """A subscription, once it has published so many rows."""
    from halfmq_connect.cdc.run import ChangeCapture  # noqa: PLC0415

    capture = ChangeCapture(settings)
    thread = threading.Thread(target=capture.run)
    thread.start()
    try:
        until = time.monotonic() + LONGEST
        capture.following.wait(LONGEST)
        while capture.progress.messages < rows:
            if time.monotonic() > until or not thread.is_alive():
                raise BrokerError(f"{capture.progress.messages} of {rows} rows were published.", reason="UNACCOUNTED")
            time.sleep(0.005)
        yield capture
    finally:
        capture.stop()
        thread.join()


def _library(table: _Table, position: str, rows: int) -> float:
    """Rows a second that mysql-replication reads and decodes."""
    from pymysqlreplication import BinLogStreamReader  # noqa: PLC0415
    from pymysqlreplication.row_event import WriteRowsEvent  # noqa: PLC0415

    database = table.settings.database
    host, _, port = database.hosts[0].rpartition(":")
    stream = BinLogStreamReader(
        connection_settings={"host": host, "port": int(port), "user": database.user, "passwd": database.password},
        server_id=database.server_id + 1000,
        blocking=True,
        auto_position=position,
        is_mariadb=table.source.mariadb,
        only_schemas=[table.settings.name],
        enable_logging=False,
    )
    began, found = time.perf_counter(), 0
    for event in stream:
        if isinstance(event, WriteRowsEvent):
            found += len(event.rows)
            if found >= rows:
                break
    took = time.perf_counter() - began
    stream.close()
    return rows / took


def _reader(table: _Table, position: str, rows: int) -> tuple[float, int]:
    """Rows a second that this package reads and turns into messages; and the bytes of a body."""
    from halfmq_connect.cdc.messages import TableChoice  # noqa: PLC0415
    from halfmq_connect.cdc.reading import LogReader  # noqa: PLC0415

    began, found, size = time.perf_counter(), 0, 0
    choice = TableChoice(table.settings)
    reader = LogReader(table.settings, table.source, table.source.parse(position), choice, lambda *_: None)
    while found < rows:
        for piece in reader.pieces.get(LONGEST):
            found += len(piece.messages)
            size += piece.size
    took = time.perf_counter() - began
    reader.close()
    return rows / took, size // rows


def _lag(table: _Table, endpoint: str, rate: int, each: int, size: int, seconds: float) -> dict[str, Any]:
    """Milliseconds from before a row's INSERT to the time at which its message was stored."""
    with QueueReader(endpoint) as reader:
        begin = {queue.queue: queue.max_offset for queue in reader.queue_offsets(TOPIC)}
        count = max(each, int(rate * seconds) // each * each)
        with _running(table.settings) as capture:
            before, began = capture.progress.messages, time.perf_counter()
            for number in range(count // each):
                pause = began + number * each / rate - time.perf_counter()
                if pause > 0:
                    time.sleep(pause)
                table.insert(each, size)
            until = time.monotonic() + LONGEST
            while capture.progress.messages - before < count and time.monotonic() < until:
                time.sleep(0.005)
        lags = [lag for queue, first in begin.items() for lag in _lags(reader, queue, first)]
    if len(lags) != count:
        raise BrokerError(f"{count} rows were inserted, and {len(lags)} messages are there.", reason="UNACCOUNTED")
    return {
        "lag_p50_ms": round(percentile(lags, 50), 1),
        "lag_p99_ms": round(percentile(lags, 99), 1),
        "lag_rate": rate,
    }


def _lags(reader: QueueReader, queue: int, first: int) -> Iterator[float]:
    while True:
        found = reader.read_queue(TOPIC, queue, first, 1000)
        if not found.messages:
            return
        first = found.next_offset
        for message in found.messages:
            yield message.stored_at.timestamp() * 1000 - json.loads(message.body)["after"]["at"] / 1000
