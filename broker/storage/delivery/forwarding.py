"""Sends messages and acknowledges those that they were made from, in one database transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.errors import BrokerError
from broker.ports.delivery import AckOutcome, Forwarded
from broker.ports.log import Duplicate
from broker.storage.delivery import receipts
from broker.storage.log import log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.ports.delivery import AckWork
    from broker.ports.log import SendWork
    from broker.storage.catalog.directory import Directory
    from broker.storage.catalog.free_queues import FreeQueues
    from broker.storage.delivery.group_views import GroupMemory
    from broker.storage.engine.session import Session


def send_and_ack(
    session: Session,
    work: Sequence[SendWork],
    acks: Sequence[AckWork],
    now: int,
    directory: Directory,
    groups: GroupMemory,
    rotation: int,
    *,
    keep_history: bool = True,
    has_cells: bool = False,
    free: FreeQueues | None = None,
) -> Forwarded:
    """Applies all of it, or raises, so that the database transaction is rolled back.

    A repetition finds its receipts settled, and its messages stored or, by their dedup_key, those of others: it gets
    their places. It must find one under its own id, as receipts are settled by other calls too. With `free`, no queue
    is waited for.

    Raises:
        BrokerError: the refusal of the first ack or message that was refused.
    """
    outcomes = receipts.settle(session, acks, now, directory, groups, keep_history=keep_history, has_cells=has_cells)
    refusal = next((refused for outcome in outcomes for refused in _refusals(outcome)), None)
    before = log.sent_before(session, [item.message_id for item in work]) if refusal is not None else set()
    if refusal is not None and not before:
        raise refusal
    places = []
    for item, outcome in zip(work, log.send(session, work, now, directory, rotation, free), strict=True):
        if refusal is not None and item.message_id not in before and not isinstance(outcome, Duplicate):
            raise refusal
        if isinstance(outcome, BrokerError):
            raise outcome
        places.append(outcome)
    frees = {group_id for outcome in outcomes if isinstance(outcome, AckOutcome) for group_id in outcome.frees}
    return Forwarded(places, tuple(frees))


def _refusals(outcome: object) -> list[BrokerError]:
    if isinstance(outcome, AckOutcome):
        return list(outcome.refused.values())
    return [outcome] if isinstance(outcome, BrokerError) else []
