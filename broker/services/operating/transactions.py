"""Administration of transactions: inspecting one, listing pending ones, resolving."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from broker.domain.limits import check_operator, check_reason
from broker.domain.transaction import VerdictSource
from broker.errors import BrokerError, InvalidArgument, NotFound, VerdictConflict
from broker.ports.epochs import SINK_GROUP
from broker.ports.transactions import TransactionFilter, VerdictWork
from broker.services.auditing import about_to_change
from broker.services.paging import (
    decided_token,
    page_limit,
    parse_decided_token,
    parse_transaction_token,
    transaction_token,
)
from broker.services.producing.transactions import PlacedOutcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from broker.domain.check_policy import CheckPolicy
    from broker.domain.message import LogPosition
    from broker.domain.transaction import TransactionState
    from broker.ports.transactions import (
        DecidedSearch,
        TransactionDetail,
        TransactionOutcome,
        TransactionRecords,
        TransactionSummary,
    )
    from broker.services.catalog import Catalog
    from broker.services.judges import Judge
    from broker.services.positions import Positions
    from broker.services.producing.checks import Decisions


RESOLVED_AT_ONCE = 200
EXAMPLES = 10
"""Transactions that a run over many shows."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """Which transactions without a verdict; `prepared_before` in microseconds, inclusive."""

    state: TransactionState | None = None
    producer_group: str = ""
    topic: str = ""
    prepared_before: int | None = None

    @property
    def restricted(self) -> bool:
        """Whether it is not simply all of them."""
        return bool(self.state is not None or self.producer_group or self.topic or self.prepared_before is not None)


@dataclass(slots=True)
class Resolved:
    """Progress of resolving many: see ResolveTransactionsResponse."""

    matched: int = 0
    resolved: int = 0
    left: int = 0
    examples: list[TransactionSummary] = field(default_factory=list)
    done: bool = False


class TransactionOperations:
    """Inspects transactions, and decides them for their producers."""

    def __init__(
        self,
        records: TransactionRecords,
        decisions: Decisions,
        catalog: Catalog,
        positions: Positions,
        policy: CheckPolicy,
    ) -> None:
        """Takes the ports of transactions, the service for verdicts, and the check policy."""
        self._records = records
        self._decisions = decisions
        self._catalog = catalog
        self._positions = positions
        self._policy = policy

    async def transaction(
        self, transaction_id: bytes, may: Judge | None = None
    ) -> tuple[TransactionDetail, list[LogPosition]]:
        """All that is known of a transaction, and the positions of its messages.

        Args:
            transaction_id: its identity.
            may: whether whoever asks may see transactions of a producer group; None: of all.

        Raises:
            NotFound: nothing is known of it, or it may not be seen.
        """
        detail = await self._records.transaction(transaction_id)
        if detail is None or not (may is None or may(detail.summary.producer_group)):
            raise NotFound(
                "There is no transaction with this id: it was never prepared here, or its op record is past retention.",
                reason="TRANSACTION_NOT_FOUND",
                field="transaction_id",
            )
        released = detail.op.released if detail.op else ()
        return detail, await self._positions.of_transaction(transaction_id, released)

    async def undecided(
        self, wanted: Undecided, page_size: int, page_token: str, may: Judge | None = None
    ) -> tuple[list[TransactionSummary], str]:
        """A page of transactions without a verdict, in the order of their ids, and the token of the next page.

        `may`: the producer groups whose transactions may be seen.
        """
        size = page_limit(page_size)
        groups = None if may is None else await self._catalog.numbered_producer_groups.allowed(may, again=True)
        if groups is not None and not groups:
            return [], ""
        topic = wanted.topic
        found = await self._records.list_transactions(
            TransactionFilter(
                state=wanted.state,
                producer_group=wanted.producer_group or None,
                topic_id=(await self._catalog.current_topic(topic)).topic_id if topic else None,
                prepared_before=wanted.prepared_before,
                after=parse_transaction_token(page_token),
                limit=size,
                groups=groups,
            )
        )
        return found.entries, "" if found.following is None else transaction_token(found.following)

    async def decided(
        self, search: DecidedSearch, page_size: int, page_token: str, may: Judge | None = None
    ) -> tuple[list[TransactionSummary], str]:
        """A page of transactions with a verdict, the last decided first, and the token of the next page.

        Args:
            search: which; its limit, beginning and groups are set here.
            page_size: at most so many; there may be fewer although others follow.
            page_token: of the page before.
            may: the producer groups whose transactions may be seen.
        """
        groups = None if may is None else await self._catalog.numbered_producer_groups.allowed(may, again=True)
        page = await self._records.list_decided(
            replace(search, limit=page_limit(page_size), after=parse_decided_token(page_token), groups=groups)
        )
        return page.entries, decided_token(page.following)

    async def resolve_all(
        self,
        wanted: Undecided,
        *,
        commit: bool | None,
        operator: str,
        reason: str,
        dry_run: bool,
        may: Judge | None = None,
    ) -> AsyncIterator[Resolved]:
        """Decides all transactions without a verdict that match; yields the progress after each page of them.

        Args:
            wanted: which.
            commit: the verdict; None has them checked again.
            operator: the operator's name.
            reason: kept with each verdict.
            dry_run: only count them.
            may: the producer groups that the operator may decide for; None: all.

        Raises:
            InvalidArgument: nothing restricts which; no reason, or one too long.
        """
        if not wanted.restricted:
            raise InvalidArgument(
                "This would resolve every transaction, also those whose local transactions are still running: say"
                " state, producer_group, topic, older_than or prepared_before.",
                field="state",
            )
        operator = check_operator(operator)
        if not dry_run:
            reason = _needed(reason)
            await about_to_change()
        so_far, token, shown = Resolved(), "", False
        while True:
            page, token = await self.undecided(wanted, RESOLVED_AT_ONCE, token, may)
            # Those of sinks are decided by epochs, and nobody is asked about them.
            found = [each for each in page if each.producer_group != SINK_GROUP]
            so_far.matched += len(found)
            # Of the first ones that match, once: they may be far behind the beginning.
            so_far.examples = [] if shown else found[:EXAMPLES]
            shown = shown or bool(found)
            if found and not dry_run:
                done = await self._resolve_some(found, commit, operator, reason, may)
                so_far.resolved += done
                so_far.left += len(found) - done
            so_far.done = not token
            yield so_far
            if so_far.done:
                return

    async def _resolve_some(
        self, found: Sequence[TransactionSummary], commit: bool | None, operator: str, reason: str, may: Judge | None
    ) -> int:
        """Resolves some; returns how many, without those that others decided in the meantime."""
        ids = [each.transaction_id for each in found]
        outcomes: Sequence[object]
        if commit is None:
            outcomes = [await self._check_again(own, operator, reason) for own in ids]
        else:
            work = [VerdictWork(own, commit, VerdictSource.OPERATOR, reason, operator) for own in ids]
            outcomes = await self._decisions.decide(work, may)
        for outcome in outcomes:
            if isinstance(outcome, BrokerError) and not isinstance(outcome, VerdictConflict | NotFound):
                raise outcome
        return sum(not isinstance(outcome, BrokerError) for outcome in outcomes)

    async def _check_again(self, transaction_id: bytes, operator: str, reason: str) -> TransactionOutcome | BrokerError:
        try:
            return await self._records.check_again(transaction_id, self._policy, operator, reason)
        except (VerdictConflict, NotFound) as error:
            return error.as_outcome()

    async def resolve(
        self,
        transaction_id: bytes,
        *,
        commit: bool | None,
        operator: str,
        reason: str,
        may: Judge | None = None,
    ) -> PlacedOutcome:
        """Decides for the producer; None as verdict has the transaction checked again.

        Args:
            transaction_id: its identity.
            commit: the verdict.
            operator: the operator's name.
            reason: kept with the verdict.
            may: the producer groups that the operator may decide for; None: all.

        Raises:
            InvalidArgument: no reason, or one too long.
            NotFound: no such transaction.
            VerdictConflict: it has the opposite verdict.
        """
        reason = _needed(reason)
        operator = check_operator(operator)
        await self.transaction(transaction_id, may)
        await about_to_change()
        if commit is None:
            outcome = await self._records.check_again(transaction_id, self._policy, operator, reason)
            positions = await self._positions.of_transaction(transaction_id, outcome.released)
            return PlacedOutcome(outcome.transaction_id, outcome.state, positions)
        work = VerdictWork(transaction_id, commit, VerdictSource.OPERATOR, reason, operator)
        result = (await self._decisions.decide([work], may))[0]
        if isinstance(result, BrokerError):
            raise result
        return result


def _needed(reason: str) -> str:
    reason = check_reason(reason.strip())
    if not reason:
        raise InvalidArgument("An operator's decision needs a reason; it is kept.", field="reason")
    return reason
