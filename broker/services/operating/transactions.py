"""Administration of transactions: inspecting one, listing pending ones, resolving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.limits import check_operator, check_reason
from broker.domain.transaction import VerdictSource
from broker.errors import BrokerError, InvalidArgument, NotFound
from broker.ports.transactions import TransactionFilter, VerdictWork
from broker.services.auditing import about_to_change
from broker.services.paging import page_limit, parse_transaction_token, transaction_token
from broker.services.producing.transactions import PlacedOutcome

if TYPE_CHECKING:
    from broker.domain.check_policy import CheckPolicy
    from broker.domain.message import LogPosition
    from broker.domain.transaction import TransactionState
    from broker.ports.transactions import TransactionDetail, TransactionRecords, TransactionSummary
    from broker.services.catalog import Catalog
    from broker.services.judges import Judge
    from broker.services.positions import Positions
    from broker.services.producing.checks import Decisions


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
        self,
        *,
        state: TransactionState | None,
        producer_group: str,
        topic: str,
        prepared_before: int | None,
        page_size: int,
        page_token: str,
        may: Judge | None = None,
    ) -> tuple[list[TransactionSummary], str]:
        """A page of transactions without a verdict, in the order of their ids, and the token of the next page.

        `may`: the producer groups whose transactions may be seen.
        """
        size = page_limit(page_size)
        groups = None if may is None else await self._catalog.numbered_producer_groups.allowed(may, again=True)
        if groups is not None and not groups:
            return [], ""
        found = await self._records.list_transactions(
            TransactionFilter(
                state=state,
                producer_group=producer_group or None,
                topic_id=(await self._catalog.topic(topic)).topic_id if topic else None,
                prepared_before=prepared_before,
                after=parse_transaction_token(page_token),
                limit=size + 1,
                groups=groups,
            )
        )
        if len(found) <= size:
            return found, ""
        return found[:size], transaction_token(found[size - 1].transaction_id)

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
        reason = check_reason(reason.strip())
        if not reason:
            raise InvalidArgument("An operator's decision needs a reason; it is kept.", field="reason")
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
