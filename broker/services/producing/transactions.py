"""Transactions: half messages and verdicts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.errors import BrokerError, NotFound
from broker.ports.observer import NO_OBSERVER, Observer
from broker.ports.tracer import NO_TRACER, Tracer
from broker.ports.transactions import TransactionOutcome, VerdictWork
from broker.services.positions import Released
from broker.services.producing.telling import TRANSACTION, tell_refused, tell_stored
from broker.services.producing.validation import names_deleted_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.limits import Limits
    from broker.domain.message import LogPosition
    from broker.domain.transaction import TransactionState
    from broker.ports.transactions import PrepareWork, TransactionStore
    from broker.services.catalog import Catalog
    from broker.services.judges import Judge
    from broker.services.positions import Positions
    from broker.services.producing.validation import HalfTransaction, MessageValidator
    from broker.services.wakeups import Wakeups


@dataclass(slots=True)
class PlacedOutcome:
    """State of a transaction, and its messages' positions when it is committed."""

    transaction_id: bytes
    state: TransactionState
    released: list[LogPosition]


class TransactionService:
    """Stores half messages, and applies verdicts."""

    def __init__(
        self,
        store: TransactionStore,
        catalog: Catalog,
        validator: MessageValidator,
        positions: Positions,
        wakeups: Wakeups,
        observer: Observer = NO_OBSERVER,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Takes the port of transactions, the validator, the wake-ups, the observer, and the tracer."""
        self._observer = observer
        self._tracer = tracer
        self._store = store
        self._catalog = catalog
        self._validator = validator
        self._positions = positions
        self._wakeups = wakeups

    @property
    def limits(self) -> Limits:
        """Limits of messages and requests."""
        return self._validator.limits

    async def prepare(
        self, producer_group: str, requests: Sequence[HalfTransaction | BrokerError]
    ) -> list[PlacedOutcome | BrokerError]:
        """Stores half messages; one outcome per request, errors among the requests are passed through."""
        self.limits.check_items(len(requests), "transactions")
        group_id = await self._catalog.producer_group_id(producer_group)
        outcomes: list[PlacedOutcome | BrokerError | None] = [None] * len(requests)
        work: list[PrepareWork] = []
        indexes: list[int] = []
        began = self._tracer.now()
        for index, request in enumerate(requests):
            if isinstance(request, BrokerError):
                outcomes[index] = request
                continue
            try:
                work.append(await self._validator.half_work(group_id, request))
                indexes.append(index)
            except BrokerError as error:
                outcomes[index] = error.as_outcome()
        stored = await self._stored(work)
        if self._tracer.enabled:
            self._trace_prepared(work, stored, producer_group, began)
        for index, done in zip(indexes, stored, strict=True):
            outcomes[index] = done if isinstance(done, BrokerError) else await self._placed(done)
        if self._observer is not NO_OBSERVER:
            placed = [item for index, item in zip(indexes, work, strict=True) if _is_placed(outcomes[index])]
            tell_stored(self._observer, [half.message for item in placed for half in item.halves], TRANSACTION)
            tell_refused(self._observer, outcomes)
        return [outcome for outcome in outcomes if outcome is not None]

    def _trace_prepared(
        self, work: Sequence[PrepareWork], stored: Sequence[object], producer_group: str, began: int
    ) -> None:
        for item, outcome in zip(work, stored, strict=True):
            if not isinstance(outcome, BrokerError):
                messages = [half.message for half in item.halves]
                self._tracer.stored("prepare", item.transaction_id, messages, producer_group, began)

    async def _stored(self, work: list[PrepareWork]) -> list[TransactionOutcome | BrokerError]:
        done: list[TransactionOutcome | BrokerError] = list(await self._store.prepare(work))
        again: dict[int, PrepareWork] = {}
        for index, outcome in enumerate(done):
            if names_deleted_topic(outcome):
                try:
                    again[index] = await self._validator.half_work_again(work[index])
                except BrokerError as error:
                    done[index] = error
        for index, outcome in zip(again, await self._store.prepare(list(again.values())) if again else [], strict=True):
            done[index] = outcome
        return done

    async def numbers_of(self, topic: str, producer_group: str) -> tuple[int, int | None]:
        """The numbers of a topic and of a producer group, None if there is no such group; neither is created.

        Raises:
            InvalidArgument: the topic's name is not allowed.
            NotFound: there is no such topic.
        """
        found = self._catalog.known_topic(topic) or await self._catalog.current_topic(topic)
        return found.topic_id, await self._catalog.find_producer_group(producer_group)

    async def decide(
        self, verdicts: Sequence[VerdictWork | BrokerError], may: Judge | None = None
    ) -> list[PlacedOutcome | BrokerError]:
        """Commits or rolls back; one outcome per verdict, errors among the verdicts are passed through.

        Args:
            verdicts: what to decide.
            may: whether whoever decides may do so for a producer group; for others it is as if there were no such
                transaction. None: for all.
        """
        self.limits.check_items(len(verdicts), "transaction_ids")
        began, traced_from = time.monotonic(), self._tracer.now()
        work = [verdict for verdict in verdicts if isinstance(verdict, VerdictWork)]
        decided = iter(await (self._store.decide(work) if may is None else self._decide_within(work, may)))
        outcomes: list[PlacedOutcome | BrokerError] = []
        released = Released()
        for verdict in verdicts:
            done = verdict if isinstance(verdict, BrokerError) else next(decided)
            if isinstance(done, TransactionOutcome):
                if self._tracer.enabled and isinstance(verdict, VerdictWork):
                    self._trace_decided(verdict, done, traced_from)
                outcomes.append(await self._placed(done, released))
            else:
                outcomes.append(done)
            self._tell_decided(verdict, done)
        self._wakeups.arrived(released)
        if self._observer is not NO_OBSERVER:
            if released.end_offsets:
                self._observer.messages_released(time.monotonic() - began)
            tell_refused(self._observer, outcomes)
        return outcomes

    def _trace_decided(self, verdict: VerdictWork, done: TransactionOutcome, began: int) -> None:
        name = "commit" if verdict.commit else "rollback"
        source = verdict.source.name.lower()
        self._tracer.decided(verdict.transaction_id, name, source, verdict.traceparent, len(done.released), began)

    def _tell_decided(self, verdict: VerdictWork | BrokerError, done: TransactionOutcome | BrokerError) -> None:
        if (
            self._observer is NO_OBSERVER
            or isinstance(verdict, BrokerError)
            or isinstance(done, BrokerError)
            or done.decided is None
        ):
            return
        new = done.decided
        name = "COMMIT" if verdict.commit else "ROLLBACK"
        self._observer.transaction_decided(new.group_id, name, verdict.source.name, new.halves, new.after / 1_000_000)

    async def _decide_within(self, work: Sequence[VerdictWork], may: Judge) -> list[TransactionOutcome | BrokerError]:
        groups = self._catalog.numbered_producer_groups
        allowed = await groups.allowed(may)
        for item in work:
            item.groups = allowed
        done = list(await self._store.decide(work))
        missing = [index for index, outcome in enumerate(done) if isinstance(outcome, NotFound)]
        # A group may be new, and this broker not know it yet.
        if missing and (now := await groups.allowed(may, again=True)) != allowed:
            rest = [work[index] for index in missing]
            for item in rest:
                item.groups = now
            again = await self._store.decide(rest)
            for index, outcome in zip(missing, again, strict=True):
                done[index] = outcome
        return done

    async def _placed(self, outcome: TransactionOutcome, released: Released | None = None) -> PlacedOutcome:
        positions = await self._positions.of_transaction(outcome.transaction_id, outcome.released, released)
        return PlacedOutcome(outcome.transaction_id, outcome.state, positions)


def _is_placed(outcome: object) -> bool:
    return isinstance(outcome, PlacedOutcome)
