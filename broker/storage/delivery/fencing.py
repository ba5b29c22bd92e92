"""Fencing: refuses receipts of a lease that another consumer has taken over. The rule is Lease.check_receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.lease import Receipt, bits_of
from broker.errors import StaleReceipt

if TYPE_CHECKING:
    from broker.domain.lease import Lease
    from broker.ports.delivery import AckOutcome, AckWork


def refusal_of(lease: Lease, receipt: Receipt) -> StaleReceipt | None:
    """Why a receipt is not valid; None if it is."""
    try:
        lease.check_receipt(receipt.token, receipt.offset)
    except StaleReceipt as stale:
        return stale
    return None


def acknowledged_bits(lease: Lease, item: AckWork, outcome: AckOutcome) -> int:
    """The bits of the offsets whose receipts are valid; the others are refused in `outcome`."""
    outcome.held_until = lease.available_at
    first, count = lease.first, lease.count
    if (
        lease.token == item.token
        and not lease.moved
        and first <= min(item.offsets)
        and max(item.offsets) < first + count
    ):
        return bits_of(item.offsets, first)
    good = []
    for offset in item.offsets:
        if refusal := refusal_of(lease, Receipt(item.lease_id, item.token, offset)):
            outcome.refused[offset] = refusal
            if (acknowledged := lease.acknowledged(offset)) is not None:
                outcome.acknowledged[offset] = acknowledged
        else:
            good.append(offset)
    return bits_of(good, first) if good else 0
