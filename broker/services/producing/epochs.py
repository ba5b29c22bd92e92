"""Sinks: exactly-once output of jobs that work in epochs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from broker.domain.limits import MAX_SINK_NAME, check_name
from broker.errors import BrokerError, InvalidArgument, NotFound
from broker.ports.epochs import NO_EPOCH, SINK_GROUP, EpochWrites, SinkWork
from broker.ports.observer import NO_OBSERVER, Observer
from broker.services.producing.telling import TRANSACTION, tell_stored
from broker.services.producing.validation import HalfTransaction, names_deleted_topic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.domain.limits import Limits
    from broker.domain.message import Message
    from broker.ports.epochs import Epoch, EpochCommitted, EpochStore, SinkState
    from broker.ports.transactions import PrepareWork
    from broker.services.catalog import Catalog
    from broker.services.producing.validation import MessageValidator
    from broker.services.wakeups import Wakeups

MAX_QUERY_ID = 100
MAX_ATTEMPTS = 100_000
LAST_EPOCH = 2**63 - 1
MAX_POSITION_BYTES = 1024 * 1024


class EpochService:
    """Stores half messages of epochs, and commits each epoch as a whole."""

    def __init__(
        self,
        store: EpochStore,
        catalog: Catalog,
        validator: MessageValidator,
        wakeups: Wakeups,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        """Takes the port of epochs, the validator, the wake-ups, and the observer."""
        self._observer = observer
        self._store = store
        self._catalog = catalog
        self._validator = validator
        self._wakeups = wakeups

    @property
    def limits(self) -> Limits:
        """Limits of messages and requests."""
        return self._validator.limits

    def check_counts(self, attempts: int, messages: Sequence[int]) -> None:
        """Refuses a commit that has too much in it, before anything is made of it.

        Args:
            attempts: number of attempts.
            messages: for each transaction that comes along, the number of its messages.

        Raises:
            InvalidArgument: names the field and what to do.
        """
        if attempts > MAX_ATTEMPTS:
            raise InvalidArgument(f"{attempts} attempts; {MAX_ATTEMPTS} are allowed.", field="attempts")
        most = self.limits.max_items
        for count, what in ((len(messages), "transactions"), (sum(messages), "messages in the transactions")):
            if count > most:
                raise InvalidArgument(
                    f"{count} {what} of one commit; {most} are allowed. Commit them in several epochs, or store them"
                    " before with PrepareEpoch and name their attempt: an attempt may have any number.",
                    field="transactions",
                )

    async def prepare(
        self, epoch: Epoch, attempt_id: bytes, transaction_id: bytes, messages: Sequence[Message]
    ) -> bool:
        """Stores half messages; returns whether the epoch is committed already, so that nothing was stored.

        Raises:
            InvalidArgument: a name or a message is invalid.
            NotFound: a topic does not exist.
            Refused: the sink belongs to another query.
        """
        _check(epoch)
        for index, message in enumerate(messages):
            if message.dedup_key is not None:
                raise InvalidArgument(
                    "A message of an epoch has no dedup_key: the epoch is released once, and a task that is tried again"
                    " would find its own key taken.",
                    field=f"messages[{index}].dedup_key",
                )
        group_id = await self._catalog.producer_group_id(SINK_GROUP)
        halves = await self._validator.half_work(group_id, HalfTransaction(transaction_id, list(messages)))
        halves.checked = False
        outcome = await self._store.prepare_epoch(SinkWork(epoch, attempt_id, halves))
        if names_deleted_topic(outcome):
            halves = await self._validator.half_work_again(halves)
            outcome = await self._store.prepare_epoch(SinkWork(epoch, attempt_id, halves))
        if isinstance(outcome, BrokerError):
            raise outcome
        if not outcome:
            tell_stored(self._observer, messages, TRANSACTION)
        return outcome

    async def commit(
        self,
        epoch: Epoch,
        attempts: Mapping[bytes, int],
        transactions: Sequence[HalfTransaction] = (),
        position: bytes | None = None,
        after: int | None = None,
    ) -> EpochCommitted:
        """Releases all messages of some attempts of an epoch, in one database transaction, and drops the rest.

        Transactions that come along are written in the same database transaction, and so is the position.
        `after`: only if this epoch (NO_EPOCH: none) was committed last.

        Raises:
            InvalidArgument: a name or a message is invalid.
            NotFound: a topic does not exist.
            Refused: the sink belongs to another query, half messages are missing, or another epoch was committed last.
        """
        _check(epoch)
        if after is not None and not NO_EPOCH <= after < epoch.number:
            raise InvalidArgument(f"An epoch comes after an earlier one, or after {NO_EPOCH}.", field="after")
        self.check_counts(len(attempts), [len(each.messages) for each in transactions])
        if position is not None and len(position) > MAX_POSITION_BYTES:
            raise InvalidArgument(
                f"The position has {len(position)} bytes; {MAX_POSITION_BYTES} are allowed.", field="position"
            )
        group_id = await self._catalog.producer_group_id(SINK_GROUP) if transactions else 0
        work = [await self._written(group_id, index, each) for index, each in enumerate(transactions)]
        try:
            done = await self._store.commit_epoch(epoch, attempts, EpochWrites(work, position), after)
        except NotFound as error:
            if not work or not names_deleted_topic(error):
                raise
            work = [await self._validator.half_work_again(each) for each in work]
            done = await self._store.commit_epoch(epoch, attempts, EpochWrites(work, position), after)
        self._wakeups.released(done.end_offsets)
        for each in transactions:
            tell_stored(self._observer, each.messages, TRANSACTION)
        return done

    async def _written(self, group_id: int, index: int, transaction: HalfTransaction) -> PrepareWork:
        for number, message in enumerate(transaction.messages):
            if message.dedup_key is not None or message.delay is not None or message.deliver_at is not None:
                field = "delivery" if message.dedup_key is None else "dedup_key"
                raise InvalidArgument(
                    "A message that is written with an epoch's commit has neither a delivery time nor a dedup_key.",
                    field=f"transactions[{index}].messages[{number}].{field}",
                )
        try:
            work = await self._validator.half_work(group_id, transaction)
        except InvalidArgument as error:
            raise error.within(f"transactions[{index}]") from None
        except NotFound as error:
            field = f"transactions[{index}].{error.field}"
            raise NotFound(error.message, reason=error.reason, field=field) from None
        work.checked = False
        return work

    async def abort(self, epoch: Epoch) -> bool:
        """Drops the half messages of an epoch; returns whether it is committed, and unchanged.

        Raises:
            InvalidArgument: a name is invalid.
            Refused: the sink belongs to another query.
        """
        _check(epoch if epoch.query_id else replace(epoch, query_id="any"))
        return await self._store.abort_epoch(epoch)

    async def delete(self, name: str) -> None:
        """Deletes a sink, and drops its uncommitted half messages.

        Raises:
            NotFound: there is none of this name.
        """
        check_name(name, field="sink", longest=MAX_SINK_NAME)
        await self._store.delete_sink(name)

    async def find(self, name: str) -> SinkState:
        """State of a sink.

        Raises:
            NotFound: there is none of this name.
        """
        check_name(name, field="sink", longest=MAX_SINK_NAME)
        return await self._store.find_sink(name)


def _check(epoch: Epoch) -> None:
    check_name(epoch.sink, field="epoch.sink", longest=MAX_SINK_NAME)
    if not 0 < len(epoch.query_id) <= MAX_QUERY_ID or not epoch.query_id.isprintable():
        raise InvalidArgument(f"A query has an id, of {MAX_QUERY_ID} characters at most.", field="epoch.query_id")
    if epoch.number > LAST_EPOCH:
        raise InvalidArgument(f"Epochs are numbered up to {LAST_EPOCH}.", field="epoch.number")
