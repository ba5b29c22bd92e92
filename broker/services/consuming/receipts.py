"""Receipts: acks, nacks, and extensions of leases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from broker.domain.lease import Receipt, parse_offsets
from broker.domain.limits import MAX_RECEIPTS, check_count, check_reason
from broker.errors import BrokerError, InvalidArgument, Moved, StaleReceipt
from broker.ports.delivery import AckOutcome, AckWork, ExtendWork, HoldWork, NackWork, ReceiptOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.domain.message import LogPosition
    from broker.ports.delivery import ReceiptStore, Settling
    from broker.services.consuming.config import DeliveryConfig
    from broker.services.judges import Judge
    from broker.services.positions import Positions
    from broker.services.rights import Numbered
    from broker.services.wakeups import Wakeups

    _WorkFor = Callable[[Receipt], NackWork | ExtendWork | HoldWork]


@dataclass(frozen=True, slots=True)
class Settled:
    """Outcome of a receipt; `expires_at` in microseconds.

    Attributes:
        receipt_handle: the new handle, if it has changed.
    """

    expires_at: int | None = None
    dead_letter: LogPosition | None = None
    receipt_handle: str = ""


ReceiptResults: TypeAlias = "dict[str, Settled | BrokerError]"
"""Results by receipt handle; handles that are not in it were settled as requested."""


class ReceiptService:
    """Processes receipts."""

    def __init__(
        self,
        store: ReceiptStore,
        positions: Positions,
        wakeups: Wakeups,
        config: DeliveryConfig,
        groups: Numbered | None = None,
    ) -> None:
        """Takes the port of receipts, the positions, the wake-ups, the bounds, and all groups, for judges."""
        self._store = store
        self._groups = groups
        self._positions = positions
        self._wakeups = wakeups
        self._config = config

    async def ack(self, handles: Sequence[str], may: Judge | None = None) -> ReceiptResults:
        """Acknowledges messages.

        Args:
            handles: their receipt handles.
            may: the consumer groups that whoever asks may settle for; of others it knows no receipts. None: all.
        """
        check_count(len(handles), MAX_RECEIPTS, "receipt_handles")
        results: ReceiptResults = {}
        work: list[AckWork] = []
        for some in _by_lease(handles):
            try:
                work.append(_ack_of(some))
            except InvalidArgument:
                work += _acks_one_by_one(some, results)
        for item, outcome in zip(work, await self._settled(work, may), strict=True):
            refused: dict[int, BrokerError] = {}
            if isinstance(outcome, BrokerError):
                refused = dict.fromkeys(item.offsets, outcome)
            elif isinstance(outcome, AckOutcome):
                refused = outcome.refused
                self._wakeups.leases_free(outcome.frees)
            for offset, refusal in refused.items():
                results[Receipt(item.lease_id, item.token, offset).handle] = refusal
        return results

    async def nack(
        self,
        handles: Sequence[str],
        *,
        delay: int | None = None,
        reason: str = "",
        untried: bool = False,
        given_up: bool = False,
        may: Judge | None = None,
    ) -> ReceiptResults:
        """Nacks messages; those with `given_up` become dead letters at once; `may` as for acks.

        Raises:
            InvalidArgument: the delay or the reason is out of bounds.
        """
        if delay is not None and not 0 <= delay <= self._config.longest_lease:
            raise InvalidArgument("The delay must be between 0 s and 12 h.", field="delay")
        reason = check_reason(reason)
        return await self._settle(handles, lambda receipt: NackWork(receipt, delay, reason, untried, given_up), may)

    async def extend(self, handles: Sequence[str], lease_time: int | None, may: Judge | None = None) -> ReceiptResults:
        """Extends leases; `may` as for acks.

        Raises:
            InvalidArgument: the time is out of bounds.
        """
        time = self._config.lease_time_of(lease_time, "duration")
        return await self._settle(handles, lambda receipt: ExtendWork(receipt, time), may)

    async def hold(self, handles: Sequence[str], time: int, may: Judge | None = None) -> ReceiptResults:
        """Holds single messages for a time, from now, under new receipts; then they are delivered again.

        `may` as for acks.

        For a message of a message group the whole lease is held, and the receipt stays the same.

        Raises:
            InvalidArgument: the time (microseconds) is out of bounds.
        """
        if not 0 <= time <= self._config.longest_lease:
            raise InvalidArgument("The time must be between 0 s and 12 h.", field="duration")
        return await self._settle(handles, lambda receipt: HoldWork(receipt, time), may)

    async def _settled(
        self, work: Sequence[Settling], may: Judge | None
    ) -> list[ReceiptOutcome | AckOutcome | BrokerError]:
        if may is None or self._groups is None:
            return await self._store.settle(work)
        allowed = await self._groups.allowed(may)
        done = list(await self._store.settle([replace(item, groups=allowed) for item in work]))
        refused = [index for index, item in enumerate(work) if _is_refused(item, done[index])]
        # A group may be new, and this broker not know it yet.
        if refused and (now := await self._groups.allowed(may, again=True)) != allowed:
            again = await self._store.settle([replace(work[index], groups=now) for index in refused])
            for index, outcome in zip(refused, again, strict=True):
                done[index] = outcome
        return done

    async def _settle(self, handles: Sequence[str], work_for: _WorkFor, may: Judge | None = None) -> ReceiptResults:
        check_count(len(handles), MAX_RECEIPTS, "receipt_handles")
        results: ReceiptResults = {}
        work = []
        settled = []
        for handle in handles:
            try:
                work.append(work_for(Receipt.parse(handle)))
                settled.append(handle)
            except InvalidArgument as error:
                results[handle] = error.as_outcome()
        for handle, outcome in zip(settled, await self._settled(work, may), strict=True):
            if isinstance(outcome, BrokerError):
                results[handle] = outcome
            elif isinstance(outcome, ReceiptOutcome):
                self._wakeups.leases_free(outcome.frees)
                if outcome.dead_letter is not None:
                    position = await self._positions.of(outcome.dead_letter, outcome.dead_letter_message_id)
                    results[handle] = Settled(dead_letter=position)
                elif outcome.expires_at:
                    new = outcome.receipt
                    results[handle] = Settled(outcome.expires_at, receipt_handle="" if new is None else new.handle)
        return results


def _is_refused(item: Settling, outcome: object) -> bool:
    """Whether its lease is as if it did not exist: all that was asked is refused."""
    if isinstance(item, AckWork) and isinstance(outcome, AckOutcome):
        return len(outcome.refused) == len(item.offsets)
    return isinstance(outcome, StaleReceipt | Moved)


def acks_of(handles: Sequence[str]) -> list[AckWork]:
    """The acks of all these messages.

    Raises:
        InvalidArgument: there are none or too many, or one is no receipt handle.
    """
    check_count(len(handles), MAX_RECEIPTS, "receipt_handles")
    return [_ack_of(some) for some in _by_lease(handles)]


def _by_lease(handles: Sequence[str]) -> list[list[str]]:
    """Handles of one lease differ in the offset only: the common part is parsed once, and they are settled together."""
    by_lease: dict[str, list[str]] = {}
    for handle in handles:
        lease = handle.rpartition(".")[0]
        if lease in by_lease:
            by_lease[lease].append(handle)
        else:
            by_lease[lease] = [handle]
    return list(by_lease.values())


def _ack_of(handles: Sequence[str]) -> AckWork:
    """The work for handles of one lease, which differ after the last dot only."""
    first = Receipt.parse(handles[0])
    cut = handles[0].rindex(".") + 1
    return AckWork(first.lease_id, first.token, parse_offsets([handle[cut:] for handle in handles]))


def _acks_one_by_one(handles: Sequence[str], results: ReceiptResults) -> list[AckWork]:
    """The work for handles some of which are invalid; adds the errors to `results`."""
    work = []
    for handle in handles:
        try:
            work.append(_ack_of([handle]))
        except InvalidArgument as error:
            results[handle] = error.as_outcome()
    return work
