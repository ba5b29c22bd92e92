"""Outcomes of receipts, as errors and values of the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_core.connection.statuses import as_item_error
from client_core.message import LogPosition
from consumer_sdk.errors import BatchReceiptsRefused, HalfmqError, ReceiptRefused, RequestRefused, StaleReceipt
from consumer_sdk.leases import LOST_REASONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumer_sdk.receipts import ReceiptResults
    from halfmq.v1 import consumer_pb2 as pb

__all__ = ["dead_letters", "raise_refusals"]


def raise_refusals(handles: Sequence[str], said: ReceiptResults) -> None:
    """Raises if some of these receipts were refused.

    Raises:
        StaleReceipt: The lease of the one message has ended.
        ReceiptRefused: The broker refused the one message for another reason.
        BatchReceiptsRefused: Some of several messages were refused.
        BrokerUnavailable: The broker could not settle the one message before the retry deadline.
    """
    if not said:
        return
    refused = [_error(said[handle]) for handle in handles if handle in said and said[handle].HasField("error")]
    if not refused:
        return
    if len(handles) == 1:
        raise refused[0]
    msg = f"{len(refused)} of {len(handles)} receipts were refused; the first of them: {refused[0]}; see .refused"
    raise BatchReceiptsRefused(msg, refused)


def dead_letters(handles: Sequence[str], said: ReceiptResults) -> list[LogPosition | None]:
    """Returns for each receipt its message's position in the dead letter topic, or None."""
    results = [said.get(handle) for handle in handles]
    return [LogPosition.of(each.dead_letter) if each and each.HasField("dead_letter") else None for each in results]


def _error(result: pb.ReceiptResult) -> HalfmqError:
    plain = as_item_error(result.error)
    if not isinstance(plain, RequestRefused):
        return plain
    kind = StaleReceipt if plain.reason in LOST_REASONS else ReceiptRefused
    error = kind(str(plain), code=plain.code, reason=plain.reason, field=plain.field)
    error.receipt_handle = result.receipt_handle
    return error
