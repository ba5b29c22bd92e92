"""Answers to checks: recorded in the history of the transaction, and applied, whatever their protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.domain.transaction import CheckVerdict, VerdictSource
from broker.ports.observer import NO_OBSERVER, Observer
from broker.ports.tracer import NO_TRACER, Tracer
from broker.ports.transactions import VerdictWork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.errors import BrokerError
    from broker.ports.checks import CheckAnswer, CheckHistory
    from broker.ports.transactions import TransactionDetails
    from broker.services.judges import Judge
    from broker.services.producing.transactions import PlacedOutcome


class Decisions(Protocol):
    """Decides transactions."""

    async def decide(
        self, verdicts: Sequence[VerdictWork | BrokerError], may: Judge | None = None
    ) -> list[PlacedOutcome | BrokerError]:
        """Commits and rolls back; `may`: the producer groups for which that counts."""
        ...


class Answers(Protocol):
    """Takes producers' answers to checks."""

    async def take(
        self, transaction_id: bytes, answer: CheckAnswer, check_number: int | None = None
    ) -> PlacedOutcome | BrokerError | None:
        """Records an answer, and decides the transaction if it is a verdict: see CheckAnswers."""
        ...


class CheckAnswers:
    """Processes producers' answers to checks."""

    def __init__(
        self,
        history: CheckHistory,
        details: TransactionDetails,
        decisions: Decisions,
        observer: Observer = NO_OBSERVER,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Takes the ports of the check history and of transactions, the service for verdicts, observer and tracer."""
        self._tracer = tracer
        self._observer = observer
        self._history = history
        self._details = details
        self._decisions = decisions

    async def take(
        self, transaction_id: bytes, answer: CheckAnswer, check_number: int | None = None
    ) -> PlacedOutcome | BrokerError | None:
        """Records an answer, and decides the transaction if it is a verdict.

        Args:
            transaction_id: Identity of the transaction.
            answer: The answer and its producer.
            check_number: Number of the answered check; None: the last one.

        Returns:
            Outcome of the transaction; None: the answer is UNKNOWN, and it is checked again.

        Raises:
            BrokerError: It could not be recorded; nothing is decided.
        """
        if check_number is None:
            detail = await self._details.transaction(transaction_id)
            check_number = detail.summary.check_count if detail else 0
        if check_number:
            await self._history.record_answer(transaction_id, check_number, answer)
        self._observer.check_answered(answer.verdict.name)
        if self._tracer.enabled:
            self._tracer.check_answered(transaction_id, answer.verdict.name, answer.client_id, answer.traceparent)
        if answer.verdict is CheckVerdict.UNKNOWN:
            return None
        commit = answer.verdict is CheckVerdict.COMMIT
        work = VerdictWork(
            transaction_id,
            commit,
            VerdictSource.CHECK,
            answer.reason,
            groups=answer.groups,
            topics=answer.topics,
            traceparent=answer.traceparent,
        )
        return (await self._decisions.decide([work]))[0]
