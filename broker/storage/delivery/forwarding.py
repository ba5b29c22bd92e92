"""Sends messages and acknowledges those that they were made from, in one database transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.errors import BrokerError
from broker.ports.delivery import AckOutcome, Forwarded
from broker.storage.delivery import receipts
from broker.storage.log import log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.ports.delivery import AckWork
    from broker.ports.log import SendWork
    from broker.storage.catalog.directory import Directory
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
) -> Forwarded:
    """Applies all of it, or raises, so that the database transaction is rolled back.

    A repetition finds its receipts settled, and all of its messages: it gets their places.

    Raises:
        BrokerError: the refusal of the first ack or message that was refused.
    """
    outcomes = receipts.settle(session, acks, now, directory, groups, keep_history=keep_history)
    refusal = next((refused for outcome in outcomes for refused in _refusals(outcome)), None)
    if refusal is not None and not log.were_sent(session, [item.message_id for item in work]):
        raise refusal
    places = []
    for outcome in log.send(session, work, now, directory, rotation):
        if isinstance(outcome, BrokerError):
            raise outcome
        places.append(outcome)
    frees = {group_id for outcome in outcomes if isinstance(outcome, AckOutcome) for group_id in outcome.frees}
    return Forwarded(places, tuple(frees))


def _refusals(outcome: object) -> list[BrokerError]:
    if isinstance(outcome, AckOutcome):
        return list(outcome.refused.values())
    return [outcome] if isinstance(outcome, BrokerError) else []
