"""`halfmq relay`: sends the messages of an outbox; any number of them, one of which has the turn."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from client_core.connection import TlsConfig
from client_core.errors import ConfigurationError
from halfmq_connect.cli.logs import LogFormat, LogLevel, set_up_log
from halfmq_connect.cli.metrics import MetricsListen, metrics_at, of_relay
from producer_sdk.outbox import BrokerTarget, Outbox, RelaySettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer_sdk.outbox import RelayTarget
    from producer_sdk.outbox.relay import Relay

_SETTINGS = RelaySettings()
_AT_ONCE = 1000
_ANSWER_WITHIN = 20
"""Seconds that the relay waits for an answer of its database, where the driver can tell."""
_LOOK_EVERY = 0.5
_END_WITHIN = 15.0
"""Seconds after SIGTERM: what is under way is waited for, then it ends without."""
_DRIVERS = {"mysql": "mysql+pymysql", "mariadb": "mysql+pymysql", "postgresql": "postgresql+psycopg"}
"""The drivers of URLs that name none: those that `halfmq serve` and these pages use."""


def relay(
    database: Annotated[
        str | None,
        typer.Option(
            help="URL of the database with the outbox, as SQLAlchemy takes it.", envvar="HALFMQ_RELAY_DATABASE"
        ),
    ] = None,
    database_file: Annotated[
        Path | None, typer.Option(help="File with the URL: arguments are seen by all users of the machine.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="Where the brokers listen: host:port, several with commas.", envvar="HALFMQ_ENDPOINT"),
    ] = None,
    to: Annotated[str, typer.Option(help="Where to: halfmq, or kafka (at least once).")] = "halfmq",
    kafka: Annotated[
        str | None,
        typer.Option("--bootstrap-servers", help="With --to kafka: where Kafka listens.", envvar="HALFMQ_KAFKA"),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="With --to kafka: topic=topic of Kafka, repeated; others have the same name there."),
    ] = None,
    table: Annotated[str, typer.Option(help="Name of the table of messages.")] = "halfmq_outbox",
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt, with the system's authorities.")] = False,
    tls_ca: Annotated[Path | None, typer.Option(help="Encrypt; CA of the brokers' certificates (PEM file).")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="Certificate to show to brokers (PEM file).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM file).")] = None,
    decide: Annotated[
        str | None, typer.Option(help="Decides about UNKNOWN messages: module:function, called with the Message.")
    ] = None,
    create_tables: Annotated[
        bool, typer.Option("--create-tables", help="Create the tables where they are missing.")
    ] = False,
    poll: Annotated[float, typer.Option(help="Seconds between looks for new messages.")] = _SETTINGS.poll,
    batch: Annotated[int, typer.Option(help="Messages in one request at most.")] = _SETTINGS.batch,
    in_flight: Annotated[int, typer.Option(help="Requests under way at a time.")] = _SETTINGS.in_flight,
    lease: Annotated[
        float, typer.Option(help="Seconds after which another relay takes over from one that is silent.")
    ] = _SETTINGS.lease,
    keep_hours: Annotated[float, typer.Option(help="Hours that sent messages stay as GLOBAL_COMMIT; 0: none.")] = 0.0,
    ids_remembered_hours: Annotated[
        float, typer.Option(help="Hours that brokers know ids of messages (retention_hours), less a margin.")
    ] = _SETTINGS.ids_remembered / 3600,
    on_error: Annotated[
        str, typer.Option(help="Later messages of a group after one that failed: they wait (block), or not (pass).")
    ] = _SETTINGS.on_error,
    status: Annotated[bool, typer.Option("--status", help="Show what the outbox holds as JSON, and end.")] = False,
    retry: Annotated[
        str | None, typer.Option(help="Have failed messages sent again, by their ids (1,2,5) or 'all', and end.")
    ] = None,
    skip: Annotated[str | None, typer.Option(help="Never send these failed messages (1,2,5), and end.")] = None,
    possibly_twice: Annotated[
        bool,
        typer.Option(
            "--possibly-twice", help="With --retry: also those that brokers may have stored, and forgotten since."
        ),
    ] = False,
    metrics_listen: MetricsListen = None,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Relay the messages of an outbox to brokers, each exactly once, in the order of its message group.

    Start as many as you like: one has the turn, the others stand by. SIGTERM ends it after the messages under way.
    """
    try:
        set_up_log(log_format, log_level)
        settings = dataclasses.replace(
            _SETTINGS,
            poll=poll,
            batch=batch,
            in_flight=in_flight,
            lease=lease,
            keep=keep_hours * 3600,
            ids_remembered=ids_remembered_hours * 3600,
            on_error=on_error,
        )
        url = _url(database, database_file)
        outbox = Outbox(url, table=table, settings=settings, decide=_function(decide))
        if create_tables:
            outbox.create_tables()
        if status or retry is not None or skip is not None:
            _operate(outbox, retry, skip, possibly_twice=possibly_twice)
            return
        target = (
            _kafka(kafka, topic or []) if _is_kafka(to) else _target(endpoint, tls, tls_ca, tls_certificate, tls_key)
        )
        _run(outbox, target, metrics_listen)
    except ConfigurationError as error:
        hint = " (--create-tables makes missing tables)" if error.field == "table" and error.__cause__ else ""
        _fail((f"{error.field}: {error}" if error.field else str(error)) + hint)
    except Exception as error:
        if not type(error).__module__.startswith("sqlalchemy."):
            raise
        _fail(f"database: {error.__cause__ or error} (--create-tables makes missing tables)")


def _run(outbox: Outbox, target: RelayTarget, metrics_listen: str | None) -> None:
    outbox.identity()
    made = outbox.relay(target)
    with metrics_at(metrics_listen, lambda: of_relay(outbox, made)):
        _relay(outbox, target, made)


def _relay(outbox: Outbox, target: RelayTarget, made: Relay) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            made.run()
        except BaseException as error:
            failures.append(error)
        finally:
            target.close()
            outbox.close()

    # Not in this thread, where signals are handled: a driver may wait for its server without looking at them.
    thread = threading.Thread(target=work, name="halfmq-relay", daemon=True)
    asked: list[int] = []

    def end(number: int, _: Any) -> None:
        asked.append(number)
        made.request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    sys.stdout.write(f"relaying as {made.turn.owner}\n")
    sys.stdout.flush()
    thread.start()
    while thread.is_alive() and not asked:
        thread.join(_LOOK_EVERY)
    thread.join(_END_WITHIN)
    if thread.is_alive():
        sys.stderr.write(
            f"halfmq: the relay did not end within {_END_WITHIN:g} s, because its database or its target does not "
            "answer; the next relay goes on with what was under way\n"
        )
        sys.stderr.flush()
        os._exit(1)
    if failures:
        raise failures[0]


def _operate(outbox: Outbox, retry: str | None, skip: str | None, *, possibly_twice: bool) -> None:
    shown: dict[str, Any] = {}
    not_failed: list[int] = []
    if retry == "all":
        shown["retried"] = _retry_all(outbox, possibly_twice=possibly_twice)
    elif retry is not None:
        failed, missing = _failed(outbox, _numbers("retry", retry))
        shown["retried"] = outbox.retry(failed, possibly_twice=possibly_twice)
        not_failed += missing
    if skip is not None:
        failed, missing = _failed(outbox, _numbers("skip", skip))
        shown["skipped"] = outbox.skip(failed)
        not_failed += missing
    found = outbox.status()
    shown |= {
        "counts": {state.value: count for state, count in found.counts.items()},
        "oldest_age_s": found.oldest_age,
        "relay": found.relay or None,
        "errors": [dataclasses.asdict(each) for each in outbox.errors(limit=20)],
    }
    if not_failed:
        shown["not_failed"] = not_failed
    sys.stdout.write(json.dumps(shown, indent=2, default=str) + "\n")
    if not_failed:
        listed = ", ".join(map(str, not_failed))
        sys.stderr.write(f"halfmq: no message with this id is in MESSAGE_ERROR: {listed}; nothing was done about it\n")
        raise SystemExit(1)


def _failed(outbox: Outbox, numbers: list[int]) -> tuple[list[int], list[int]]:
    """Those of the numbers that are of failed messages, and the others."""
    failed: list[int] = []
    others: list[int] = []
    for number in dict.fromkeys(numbers):
        found = outbox.errors(number - 1, 1)
        (failed if found and found[0].id == number else others).append(number)
    return failed, others


def _retry_all(outbox: Outbox, *, possibly_twice: bool) -> int:
    count = after = 0
    while found := outbox.errors(after, _AT_ONCE):
        after = found[-1].id
        count += outbox.retry([each.id for each in found], possibly_twice=possibly_twice)
    return count


def _url(database: str | None, file: Path | None) -> str:
    if file is not None:
        try:
            database = file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigurationError(f"cannot be read: {error}", field="database-file") from error
    if not database:
        msg = "is missing: --database, --database-file or HALFMQ_RELAY_DATABASE names the database of the outbox"
        raise ConfigurationError(msg, field="database")
    scheme, colon, rest = database.partition("://")
    return _bounded(f"{_DRIVERS.get(scheme, scheme)}{colon}{rest}")


def _bounded(url: str) -> str:
    """With shorter limits than those of applications: a relay's statements are all short."""
    scheme, _, rest = url.partition("://")
    if scheme not in {"mysql+pymysql", "mysql+mysqldb", "mariadb+pymysql", "mariadb+mysqldb"}:
        return url
    wanted = [f"{name}={_ANSWER_WITHIN}" for name in ("read_timeout", "write_timeout") if f"{name}=" not in rest]
    return url + ("&" if "?" in rest else "?") + "&".join(wanted) if wanted else url


def _target(
    endpoint: str | None, tls: bool, ca: Path | None, certificate: Path | None, key: Path | None
) -> RelayTarget:
    if not endpoint:
        raise ConfigurationError(
            "is missing: --endpoint or HALFMQ_ENDPOINT says where brokers listen", field="endpoint"
        )
    if not (tls or ca or certificate or key):
        return BrokerTarget(endpoint)
    return BrokerTarget(endpoint, tls=_tls(ca, certificate, key))


def _is_kafka(to: str) -> bool:
    if to not in {"halfmq", "kafka"}:
        raise ConfigurationError(f"is halfmq or kafka, not {to!r}", field="to")
    return to == "kafka"


def _kafka(bootstrap_servers: str | None, topics: list[str]) -> RelayTarget:
    if not bootstrap_servers:
        msg = "is missing: --bootstrap-servers or HALFMQ_KAFKA says where Kafka listens"
        raise ConfigurationError(msg, field="bootstrap-servers")
    try:
        from halfmq_connect.kafka.relay_target import KafkaRelayTarget  # noqa: PLC0415 - of an extra
        from halfmq_connect.kafka.target import KafkaTarget  # noqa: PLC0415
    except ModuleNotFoundError as error:
        msg = f"kafka needs {error.name}: pip install 'halfmq[kafka]'"
        raise ConfigurationError(msg, field="to") from error
    pairs = [each.partition("=") for each in topics]
    if not all(name and target for name, _, target in pairs):
        raise ConfigurationError("is topic=topic of Kafka, such as orders=shop.orders", field="topic")
    return KafkaRelayTarget(KafkaTarget(bootstrap_servers, {name: target for name, _, target in pairs}))


def _tls(ca: Path | None, certificate: Path | None, key: Path | None) -> TlsConfig:
    content: list[bytes | None] = []
    for field, path in (("tls-ca", ca), ("tls-certificate", certificate), ("tls-key", key)):
        try:
            content.append(None if path is None else path.read_bytes())
        except OSError as error:
            raise ConfigurationError(f"cannot be read: {error}", field=field) from error
    return TlsConfig(content[0], content[1], content[2])


def _function(name: str | None) -> Callable[[Any], Any] | None:
    if name is None:
        return None
    module, _, function = name.partition(":")
    try:
        sys.path.insert(0, os.getcwd())
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"is module:function, where the module can be imported, not {name!r}: {error}"
        raise ConfigurationError(msg, field="decide") from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise ConfigurationError(f"{name!r} is no function", field="decide")
    return found  # type: ignore[no-any-return]


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        msg = f"is the ids of failed messages, such as 1,2,5, not {text!r}"
        raise ConfigurationError(msg, field=option) from None


def _fail(text: str) -> NoReturn:
    sys.stderr.write(f"halfmq: {text}\n")
    raise SystemExit(2)
