"""Receipts: acks, nacks, extensions of leases, and holding single messages; their validity, and their outcomes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from broker.domain.cell import LATELY
from broker.domain.lease import receipt_gone
from broker.errors import BrokerError, Moved, StaleReceipt
from broker.ports.delivery import AckOutcome, AckWork, HoldWork, NackWork, ReceiptOutcome, Settling
from broker.storage.catalog import moves
from broker.storage.delivery import leases
from broker.storage.delivery.fencing import acknowledged_bits, refusal_of
from broker.storage.delivery.settlement import Outcome, Outcomes, Settlement
from broker.storage.engine.clock import MOST_APART

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.catalog.directory import Directory
    from broker.storage.delivery.group_views import GroupMemory
    from broker.storage.engine.session import Session


def settle(
    session: Session,
    work: Sequence[Settling],
    now: int,
    directory: Directory,
    groups: GroupMemory,
    *,
    keep_history: bool = True,
    has_cells: bool = False,
) -> Outcomes:
    """Applies acks, nacks, extensions and holds; one outcome per item, in their order.

    With `has_cells`, a lease that is not there may be one that is moving to another cell.
    """
    found = leases.lock(session, {_lease_id(item) for item in work})
    settling = Settlement(session, found, now, directory, groups, [ReceiptOutcome() for _ in work])
    acked: dict[int, int] = defaultdict(int)
    nacks: dict[int, list[tuple[int, NackWork]]] = defaultdict(list)
    holds: list[tuple[int, HoldWork]] = []
    gone: BrokerError | None = None
    for index, item in enumerate(work):
        lease = settling.leases.get(_lease_id(item))
        if lease is not None and item.groups is not None and lease.group_id not in item.groups:
            lease = None
        if lease is None:
            gone = gone or _why_gone(session, now, has_cells=has_cells)
            settling.outcomes[index] = _refused(item, gone)
            continue
        if isinstance(item, AckWork):
            settling.outcomes[index] = outcome = AckOutcome()
            if bits := acknowledged_bits(lease, item, outcome):
                acked[item.lease_id] |= bits
            continue
        refusal = refusal_of(lease, item.receipt)
        if refusal is not None:
            settling.outcomes[index] = refusal
            continue
        settling.outcomes[index] = ReceiptOutcome(held_until=lease.available_at)
        if isinstance(item, NackWork):
            nacks[lease.lease_id].append((index, item))
        elif isinstance(item, HoldWork):
            holds.append((index, item))
        else:
            settling.extend(index, item)
    for lease_id, bits in acked.items():
        settling.ack(lease_id, bits)
    for lease_id, items in nacks.items():
        settling.give_back(lease_id, items)
    for index, hold in holds:
        settling.hold(index, hold)
    settling.store(found, keep_history=keep_history)
    return settling.outcomes


def _refused(item: Settling, why: BrokerError) -> Outcome:
    return AckOutcome(dict.fromkeys(item.offsets, why)) if isinstance(item, AckWork) else why


def _why_gone(session: Session, now: int, *, has_cells: bool) -> BrokerError:
    """Why a lease is not there. Whoever is told that it is gone takes its messages for settled."""
    if has_cells and moves.left_since(session, now - LATELY):
        return Moved("lease of this receipt")
    return receipt_gone()


def _lease_id(item: Settling) -> int:
    return item.lease_id if isinstance(item, AckWork) else item.receipt.lease_id


def still_true(before: Outcomes, again: Outcomes, now: int) -> Outcomes:
    """The outcomes after a COMMIT without an answer; `before` from the first run, `again` from the second.

    Of a receipt that was valid then and is stale now the lease tells whether the message was acknowledged, if it is
    there. Otherwise that COMMIT settled it, as long as its lease has not expired by any broker's clock: no other
    consumer can have taken the message since.
    """
    now += MOST_APART
    return [_still_true(first, second, now) for first, second in zip(before, again, strict=True)]


def unless_gone(before: Outcomes, again: Outcomes) -> Outcomes:
    """As `still_true`, where leases may have moved to another cell meanwhile: what was valid and is gone is not known.

    Clients then repeat it where the lease is.
    """
    return [_unless_gone(first, second) for first, second in zip(before, again, strict=True)]


def _unless_gone(first: Outcome, second: Outcome) -> Outcome:
    if isinstance(first, AckOutcome) and isinstance(second, AckOutcome):
        gone = second.refused.keys() - first.refused.keys()
        return Moved("lease of this receipt") if gone else second
    return Moved("lease of this receipt") if _was_valid(first) and isinstance(second, StaleReceipt) else second


def _was_valid(outcome: Outcome) -> bool:
    return isinstance(outcome, ReceiptOutcome)


def _still_true(first: Outcome, second: Outcome, now: int) -> Outcome:
    if isinstance(first, AckOutcome) and isinstance(second, AckOutcome):
        is_held = now < first.held_until
        second.refused = {
            offset: why
            for offset, why in second.refused.items()
            if offset in first.refused or not second.acknowledged.get(offset, is_held)
        }
        # This run may be in doubt as well, and may then have found the lease missing.
        second.held_until = max(first.held_until, second.held_until)
        # Leases released by the first run are available, but no consumer was woken.
        second.frees = tuple({*first.frees, *second.frees})
        return second
    if isinstance(second, StaleReceipt) and isinstance(first, ReceiptOutcome) and now < first.held_until:
        return first
    return second
