"""Verifies that the sent messages arrived: a rate with lost messages would be meaningless."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from broker.errors import BrokerError
from broker.storage.tables.bodies import unpack
from halfmq_cli.bench.load import MARK, mark_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.storage.engine.connection import Database

_SHOWN = 5


class Unaccounted(BrokerError):
    """Messages are missing, or some arrived that were not sent; the figures are invalid."""

    def __init__(self, message: str) -> None:
        """Takes the error text."""
        super().__init__(message, reason="BENCH_UNACCOUNTED", field="bench")


def check_arrived(arrived: Iterable[int], sent: range) -> int:
    """Checks that exactly these messages arrived.

    Args:
        arrived: The number of every message, once per delivery.
        sent: The numbers that were sent.

    Returns:
        Number of redelivered messages. Delivery is at least once, so that is not an error, but worth reporting.

    Raises:
        Unaccounted: Messages are missing, or arrived without having been sent.
    """
    times = Counter(arrived)
    missing = [number for number in sent if number not in times]
    foreign = sorted(number for number in times if number not in sent)
    if missing or foreign:
        raise Unaccounted(
            f"{len(sent)} messages were sent; {_some(missing)} did not arrive, and {_some(foreign)} came that were not"
            " sent. The figures are void; keep the broker's log."
        )
    return times.total() - len(times)


def numbers_stored(database: Database, topic: str | None = None) -> list[int]:
    """The numbers of all messages in the log, or of a topic's."""
    session = database.session()
    select = (
        "SELECT CASE WHEN LENGTH(body) = size THEN SUBSTR(body, 1, ?) ELSE body END, LENGTH(body), size FROM message"
    )
    if topic is None:
        found = session.fetch(select, (MARK,))
    else:
        queues = "SELECT queue_id FROM queue JOIN topic ON topic.topic_id = queue.topic_id WHERE topic.name = ?"
        found = session.fetch(f"{select} WHERE queue_id IN ({queues})", (MARK, topic))
    session.rollback()
    database.release(session)
    return [mark_of(body if length == size else unpack(body, size)) for body, length, size in found]


def _some(numbers: list[int]) -> str:
    if not numbers:
        return "0"
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")
    return f"{len(numbers)} (number {shown})"
