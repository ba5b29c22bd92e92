"""One round: compares rows of a window with the recorded messages, in an order that reports nothing in between.

Rows are read first, then half messages (once, for all pages of rows), then the ends of the queues, and then, when the
recorder has come to those, the records. So a message that is released meanwhile is found at one of the places, and a
row without message at none.
"""

from __future__ import annotations

import time
from collections import Counter
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from client_core.connection import BackgroundRunner, BrokerLink
from client_core.encoding import from_wire
from consumer_sdk import QueueReader
from consumer_sdk.reconciliation import (
    DUPLICATE,
    IN_DOUBT,
    MESSAGE_WITHOUT_ROW,
    MISMATCH,
    halves_of_topic,
)
from halfmq_connect.reconciliation.findings import Finding
from halfmq_connect.reconciliation.group import dead_letters
from halfmq_connect.reconciliation.recorder import key_or_none
from halfmq_connect.reconciliation.records import pages, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from client_core.connection import Endpoint
    from client_core.local_database import LocalDatabase
    from client_core.message import Message
    from client_core.stored import StoredMessage
    from consumer_sdk.reconciliation import Window
    from halfmq_connect.reconciliation.business import BusinessRow, BusinessTable
    from halfmq_connect.reconciliation.records import Record, Records

__all__ = ["Comparison", "NotCaughtUp"]

_LOOK_AGAIN = 0.05


class NotCaughtUp(Exception):
    """The recorder has not recorded all delivered messages in time."""


class Comparison:
    """What a round does, in its order."""

    def __init__(
        self,
        database: LocalDatabase,
        table: BusinessTable,
        records: Records,
        endpoint: Endpoint,
        topic: str,
        group: str,
        key: Callable[[StoredMessage | Message], str | None],
        record_of: Callable[[StoredMessage], Record],
        *,
        unique: bool,
    ) -> None:
        """Takes both sides."""
        self._database = database
        self._table = table
        self._records = records
        self._endpoint = endpoint
        self._topic = topic
        self._group = group
        self._key = key
        self._record_of = record_of
        self._unique = unique
        self._halves: Counter[str] | None = None
        self.rows = 0
        """Rows compared so far."""

    def rows_without_message(
        self, window: Window, catch_up: float
    ) -> Iterator[tuple[list[BusinessRow], list[Finding]]]:
        """For each page of rows: those without a message, and what is otherwise wrong with the page.

        Raises:
            NotCaughtUp: The recorder did not come to the queues' ends in time.
        """
        for page in self._table.rows(self._database, window.start, window.end):
            self.rows += len(page)
            recorded = self._recorded(page)
            candidates = [row for row in page if row.key not in recorded]
            findings: list[Finding] = []
            missing: list[BusinessRow] = []
            if candidates:
                in_doubt = self._in_doubt()
                self._catch_up(catch_up)
                recorded |= self._recorded(candidates)
                for row in candidates:
                    if row.key in recorded:
                        continue
                    if row.key in in_doubt:
                        findings.append(Finding(IN_DOUBT, row.key, row.time, details={"halves": in_doubt[row.key]}))
                    else:
                        missing.append(row)
            for row in page:
                if row.key in recorded:
                    findings += self._differences(row, recorded[row.key])
            yield missing, findings

    def messages_alone(self, window: Window) -> Iterator[Finding]:
        """Messages of the window whose key the table does not have, and keys with several messages."""
        told: set[str] = set()
        with self._database.reading() as local:
            for page in pages(self._records, local, window.start, window.end):
                keys = sorted({each.key for each in page if each.key is not None})
                known = self._table.known(local, keys)
                # One that was told may have messages in many pages: they are not read again for each.
                by_key = self._records.by_key(local, [key for key in keys if key not in told]) if self._unique else {}
                for each in page:
                    if each.key is None or each.key not in known:
                        yield Finding(MESSAGE_WITHOUT_ROW, each.key or "", each.time, each.message_id)
                    elif len(by_key.get(each.key, ())) > 1 and each.key not in told:
                        told.add(each.key)
                        ids = [record.message_id for record in by_key[each.key]]
                        yield Finding(DUPLICATE, each.key, each.time, ids[-1], details={"messages": len(ids)})

    def _recorded(self, rows: list[BusinessRow]) -> dict[str, list[Record]]:
        with self._database.transaction() as local:
            return self._records.by_key(local, [row.key for row in rows])

    def _in_doubt(self) -> Counter[str]:
        """How many half messages there are by key; read once, and without their bodies.

        Rows of the window are as old as the grace: what is prepared from now on is not for them.
        """
        if self._halves is None:
            self._halves = self._read_halves()
        return self._halves

    def _read_halves(self) -> Counter[str]:
        async def read() -> Counter[str]:
            keys = [
                key_or_none(self._key, from_wire(half.message)) async for half in halves_of_topic(link, self._topic)
            ]
            return Counter(key for key in keys if key is not None)

        runner = BackgroundRunner("Reconciliation")
        link = BrokerLink(self._endpoint)
        try:
            return runner.run(read())
        finally:
            try:
                runner.run(link.close())
            finally:
                runner.close()

    def _catch_up(self, catch_up: float) -> None:
        """Returns when all that the log has at this moment is recorded."""
        self._wait_for_ends(catch_up)
        # The group counts as past its dead letters. After the wait, because until then messages may become some.
        for message in dead_letters(self._endpoint, self._group, self._topic):
            with self._database.transaction() as local:
                self._records.add(local, [self._record_of(message)])

    def _wait_for_ends(self, catch_up: float) -> None:
        with QueueReader(self._endpoint) as reader:
            ends = {each.queue: each.max_offset for each in reader.queue_offsets(self._topic, self._group)}
            give_up = time.monotonic() + catch_up
            while True:
                now = reader.queue_offsets(self._topic, self._group)
                if all(each.committed_offset >= ends.get(each.queue, 0) for each in now):
                    return
                if time.monotonic() >= give_up:
                    lag = sum(each.lag for each in now)
                    msg = f"{lag} delivered messages of {self._topic} are not recorded after {catch_up:g} s"
                    raise NotCaughtUp(msg)
                time.sleep(_LOOK_AGAIN)

    @staticmethod
    def _differences(row: BusinessRow, records: list[Record]) -> list[Finding]:
        newest = records[-1]
        differing = {
            name: {"row": None if row.values[name] is None else shortened(str(row.values[name])), "message": value}
            for name, value in newest.values.items()
            if name in row.values and not _equal(row.values[name], value)
        }
        if not differing:
            return []
        return [Finding(MISMATCH, row.key, row.time, newest.message_id, details=differing)]


def _equal(row: object, message: str | None) -> bool:
    """Whether a value of a row is that of a message: numbers with all their digits, everything else as text."""
    if row is None or message is None:
        return row is None and message is None
    if isinstance(row, int | float | Decimal) and not isinstance(row, bool):
        try:
            return Decimal(str(row)) == Decimal(message)
        except InvalidOperation:
            return False
    return message in {text := str(row), shortened(text)}
