"""The reconciliation of a business table with the messages about it, running all the time."""

from __future__ import annotations

import contextlib
import logging
import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from client_core.errors import BatchRefused, ConfigurationError, RequestRefused
from client_core.local_database import local_database
from client_core.message import Message
from client_core.times import from_micros
from consumer_sdk.reconciliation import (
    BUSINESS_TIME,
    REPAIRED_BY,
    ROW_WITHOUT_MESSAGE,
    Window,
    business_time_text,
    kept_since,
    repair_id,
)
from halfmq_connect.reconciliation.comparison import Comparison, NotCaughtUp
from halfmq_connect.reconciliation.findings import Finding, Round
from halfmq_connect.reconciliation.group import make_group
from halfmq_connect.reconciliation.recorder import Recorder, first_key, record_of
from halfmq_connect.reconciliation.records import Records
from halfmq_connect.reconciliation.settings import ReconciliationSettings
from producer_sdk import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import sqlalchemy as sa

    from client_core.connection import Connection
    from client_core.stored import StoredMessage
    from halfmq_connect.reconciliation.business import BusinessRow, BusinessTable

__all__ = ["Reconciliation"]

_log = logging.getLogger("halfmq.reconciliation")


class Reconciliation:
    """Consumes what a service produced, compares it with its table, and sends what is missing.

    ::

        reconciliation = Reconciliation(
            engine, BusinessTable("orders", columns=["content"]), endpoint, "orders",
            make=lambda row: Message("orders", row.values["content"], keys=[row.key]),
        )
        reconciliation.create_tables()
        with reconciliation.running():
            ...

    Any number of processes may run it: what is recorded is, once, and a missing message is sent once.
    """

    def __init__(
        self,
        database: Any,
        table: BusinessTable,
        endpoint: Connection | str,
        topic: str,
        *,
        make: Callable[[BusinessRow], Message] | None = None,
        message_key: Callable[[StoredMessage | Message], str | None] = first_key,
        compare: Mapping[str, Callable[[StoredMessage], object]] | None = None,
        unique: bool = True,
        group: str | None = None,
        record_table: str = "halfmq_delivered",
        on_finding: Callable[[Finding], None] | None = None,
        settings: ReconciliationSettings | None = None,
    ) -> None:
        """Takes both sides; nothing is opened yet.

        Args:
            database: Of the business table, where the records are kept, too: a SQLAlchemy Engine or a URL for one, a
                connection of Django's, or a function that opens a connection.
            table: The business table.
            endpoint: Where the brokers listen.
            topic: Topic of the messages.
            make: Makes the message for a row without one; None: such rows are reported only. The message is of the
                topic, and has the row's key; it is sent under an id that is derived from topic, tag and key.
            message_key: The key of a message's row; by default its first key.
            compare: What to compare, by the name of a column of the table: the same value of a message.
            unique: Whether a second message of the same key is a finding.
            group: Consumer group that records; None: ``reconcile-`` and the topic. It is made so that it passes over
                no message: retention keeps what it has not read, and nothing becomes a dead letter.
            record_table: Name of the table of records.
            on_finding: Called with each finding, once in this process; by default it is logged.
            settings: Times; None: the defaults of ReconciliationSettings.

        Raises:
            ConfigurationError: Something of it cannot be used.
        """
        self.settings = settings or ReconciliationSettings()
        self.group = group or f"reconcile-{topic}"
        self._database = local_database(database)
        self._table = table
        self._endpoint = endpoint
        self._topic = topic
        self._make = make
        self._key = message_key
        self._compare = dict(compare or {})
        missing = set(self._compare).difference(table.column_names)
        if missing:
            msg = f"compare names {', '.join(sorted(missing))}, which is not among the table's columns"
            raise ConfigurationError(msg, field="compare")
        self._unique = unique
        self._records = Records(record_table, self.group, self._database.home)
        self._on_finding = on_finding or _log_finding
        self._known: set[tuple[str, str, bool]] = set()

    def create_tables(self) -> None:
        """Creates the tables of records where they do not exist."""
        with self._database.transaction() as local:
            self._records.create(local)

    def sql(self, dialect: str) -> str:
        """The statements that create the tables, separated by semicolons.

        Args:
            dialect: ``mysql``, ``mariadb``, ``postgresql`` or ``sqlite``.
        """
        return f"{self._records.table.sql(dialect)};\n{self._records.state.sql(dialect)}"

    def add_tables(self, metadata: sa.MetaData) -> list[sa.Table]:
        """Adds the tables to a MetaData of SQLAlchemy, so that ``create_all`` and Alembic know them."""
        return [each.to_metadata(metadata) for each in (self._records.table, self._records.state)]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Records and compares in threads of its own while the block runs."""
        stopped = threading.Event()
        with self.recording():
            rounds = threading.Thread(target=self._rounds, args=(stopped,), name="halfmq-reconciliation", daemon=True)
            rounds.start()
            try:
                yield
            finally:
                stopped.set()
                rounds.join(self.settings.catch_up + 30)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Records what is delivered while the block runs; call compare() for a round.

        Raises:
            ConfigurationError: The group exists, with settings by which it would pass over messages.
        """
        make_group(self._endpoint, self.group, self._topic)
        recorder = Recorder(self._database, self._records, self._topic, self._key, self._compare)
        recorder.start(self._endpoint, self.group)
        try:
            yield
        finally:
            recorder.stop()

    def compare(self) -> Round:
        """One round: compares, and sends what is missing.

        Some process must record meanwhile: see recording() and running().

        Raises:
            HalfmqError: The broker refused, or none answered.
            Exception: The database's own.
        """
        window = self._window()
        if isinstance(window, str):
            return Round(None, postponed=window)
        comparison = Comparison(
            self._database,
            self._table,
            self._records,
            self._endpoint,
            self._topic,
            self.group,
            self._key,
            lambda message: record_of(message, self._key, self._compare),
            unique=self._unique,
        )
        findings: list[Finding] = []
        complete = False
        try:
            for missing, others in comparison.rows_without_message(window, self.settings.catch_up):
                findings += others
                for finding in self._repair(missing):
                    findings.append(finding)  # those before one that fails are told, too
            findings += comparison.messages_alone(window)
            complete = True
        except NotCaughtUp as error:
            return Round(None, findings=tuple(findings), postponed=str(error))
        finally:
            self._tell(findings, complete=complete)
        with self._database.transaction() as local:
            self._records.judge_until(local, window.end)
        self._forget(window)
        return Round(window, comparison.rows, tuple(findings))

    def _rounds(self, stopped: threading.Event) -> None:
        while not stopped.wait(self.settings.every):
            try:
                done = self.compare()
            except Exception as error:
                _log.warning("rows cannot be compared now: %s; the next round tries again", error)
            else:
                if done.window is None and done.postponed:
                    _log.info("nothing was compared: %s", done.postponed)

    def _window(self) -> Window | str:
        """What is to be compared, or why it is nothing."""
        with self._database.transaction() as local:
            now = self._now(local)
            judged = self._records.judged_until(local)
        start = now - timedelta(seconds=self.settings.window)
        if judged is not None:
            start = min(start, judged)
        # Before the first round, the group may have come too late for what retention took.
        since = kept_since(self._endpoint, self._topic, now) if judged is None else None
        try:
            return Window.of(start, now, timedelta(seconds=self.settings.grace), now).kept(since)
        except ConfigurationError as error:
            return str(error)

    @staticmethod
    def _now(local: Any) -> datetime:
        ((micros,),) = local.fetch(f"SELECT {local.dialect.now}")
        return from_micros(int(micros))

    def _repair(self, missing: list[BusinessRow]) -> Iterator[Finding]:
        messages: list[tuple[BusinessRow, Message]] = []
        for row in missing:
            if self._make is None:
                yield Finding(ROW_WITHOUT_MESSAGE, row.key, row.time)
                continue
            try:
                messages.append((row, self._message(row)))
            except Exception as error:
                yield _not_repaired(row, error)
        if messages:
            yield from self._send(messages)

    def _send(self, messages: list[tuple[BusinessRow, Message]]) -> Iterator[Finding]:
        with Producer(self._endpoint) as producer:
            try:
                outcomes: Sequence[object] = producer.send_many([message for _, message in messages])
            except BatchRefused as refused:
                outcomes = refused.outcomes
            except (TypeError, ValueError) as error:
                # One of them is no message, and nothing was sent.
                if len(messages) == 1:
                    yield _not_repaired(messages[0][0], error)
                    return
                for each in messages:
                    yield from self._send([each])
                return
        failure: Exception | None = None
        for (row, message), outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, RequestRefused) and not _was_sent(outcome):
                yield _not_repaired(row, outcome)
            elif isinstance(outcome, Exception) and not _was_sent(outcome):
                failure = failure or outcome
            else:
                yield Finding(ROW_WITHOUT_MESSAGE, row.key, row.time, message.message_id, repaired=True)
        if failure is not None:
            raise failure

    def _message(self, row: BusinessRow) -> Message:
        assert self._make is not None  # noqa: S101 - the caller's check
        made = self._make(row)
        if made.topic != self._topic or self._key(made) != row.key:
            msg = (
                f"make gave a message of topic {made.topic!r} with the key {self._key(made)!r} for the row "
                f"{row.key!r}: the next round would not recognise it; give it the topic {self._topic!r} and that key"
            )
            raise ConfigurationError(msg, field="make")
        properties = {**made.properties, BUSINESS_TIME: business_time_text(row.time), REPAIRED_BY: "reconciliation"}
        return Message(
            made.topic,
            made.body,
            tag=made.tag,
            keys=made.keys,
            properties=properties,
            message_group=made.message_group,
            priority=made.priority,
            dedup_key=made.dedup_key,
            delay=made.delay,
            deliver_at=made.deliver_at,
            message_id=repair_id(self._topic, made.tag, row.key),
        )

    def _tell(self, findings: list[Finding], *, complete: bool) -> None:
        """Tells what was not told by the last rounds; after a complete one, what it did not find is forgotten."""
        found = {(each.kind, each.key, each.repaired): each for each in findings}
        new = [each for at, each in found.items() if at not in self._known]
        self._known = set(found) if complete else self._known.union(found)
        for each in new:
            try:
                self._on_finding(each)
            except Exception:
                _log.exception(
                    "on_finding failed for %s of %s", each.kind, each.key, extra={"message_id": each.message_id}
                )

    def _forget(self, window: Window) -> None:
        before = window.start - timedelta(seconds=self.settings.grace + self.settings.keep)
        deleted = 1
        while deleted:
            # Each page is read anew: what another process has deleted meanwhile is not there any more.
            with self._database.transaction() as local:
                deleted = self._records.delete_older(local, before)


def _not_repaired(row: BusinessRow, error: Exception) -> Finding:
    return Finding(ROW_WITHOUT_MESSAGE, row.key, row.time, details={"error": f"{type(error).__name__}: {error}"})


def _was_sent(error: Exception) -> bool:
    """Before, under its id, from a row that has changed since: its message is there."""
    return isinstance(error, RequestRefused) and error.reason == "MESSAGE_ID_REUSED"


def _log_finding(finding: Finding) -> None:
    _log.warning(
        "%s: %s of %s%s%s",
        finding.kind,
        finding.key,
        finding.at.isoformat(),
        "; sent now" if finding.repaired else "",
        f"; {finding.details['error']}" if "error" in finding.details else "",
        extra={"message_id": finding.message_id},
    )
