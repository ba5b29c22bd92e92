"""Deliveries and receipts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.converters.messages import fill_log_message, position
from broker.api.converters.times import SECOND, timestamp
from broker.api.status import item_error
from broker.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer as RepeatedCompositeContainer

    from broker.services.delivery import Settled
    from broker.services.ports import Delivered
    from halfmq.v1 import consumer_pb2


def add_deliveries(target: RepeatedCompositeContainer[consumer_pb2.Delivery], part: Delivered) -> None:
    """Adds the messages of one lease to an answer."""
    prefix = f"{part.lease_id:x}.{part.token:x}."
    seconds, rest = divmod(part.expires_at, SECOND)
    attempt, last_error = part.attempt, part.last_error
    for message in part.messages:
        delivery = target.add(receipt_handle=f"{prefix}{message.offset:x}", attempt=attempt)
        delivery.lease_expires_at.seconds = seconds
        delivery.lease_expires_at.nanos = rest * 1000
        if last_error:
            delivery.last_error = last_error
        if part.ordered:
            # Only the first one was tried before, if any.
            attempt, last_error = 1, None
        fill_log_message(delivery.message, message)


def add_receipt_results(
    results: RepeatedCompositeContainer[consumer_pb2.ReceiptResult],
    handles: Sequence[str],
    outcomes: Sequence[Settled | BrokerError],
) -> None:
    """Adds what became of receipt handles to an answer."""
    for handle, outcome in zip(handles, outcomes, strict=True):
        result = results.add(receipt_handle=handle)
        if isinstance(outcome, BrokerError):
            result.error.CopyFrom(item_error(outcome))
            continue
        if outcome.expires_at is not None:
            result.lease_expires_at.CopyFrom(timestamp(outcome.expires_at))
        if outcome.dead_letter is not None:
            result.dead_letter.CopyFrom(position(outcome.dead_letter))
