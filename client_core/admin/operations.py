"""The part of the synchronous admin client that is about transactions, brokers and clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_core.admin.runner import AdminRunner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from client_core.admin.cluster import BrokerStatus, ClientKind, ConnectedClient, GroupLag, Overview
    from client_core.admin.transactions import Resolution, ResolveProgress, TransactionSummary
    from client_core.results import TransactionInfo, TransactionResult
    from client_core.states import TransactionState, VerdictSource
    from client_core.times import Span

__all__ = ["Operations"]


class Operations(AdminRunner):
    """Transactions, brokers, and clients."""

    def list_transactions(
        self,
        *,
        state: TransactionState | None = None,
        producer_group: str | None = None,
        topic: str | None = None,
        older_than: Span | None = None,
    ) -> Iterator[TransactionSummary]:
        """Iterates over transactions without a verdict, in the order of their ids, which begin with the time.

        Args:
            state: Only PREPARED or PARKED ones; None: both.
            producer_group: Only those of this producer group.
            topic: Only those with a message for this topic.
            older_than: Only those prepared at least this long ago, in seconds or as a timedelta.
        """
        return self._each(
            self._core.list_transactions(state=state, producer_group=producer_group, topic=topic, older_than=older_than)
        )

    def list_decided_transactions(
        self,
        *,
        state: TransactionState | None = None,
        producer_group: str | None = None,
        source: VerdictSource | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[TransactionSummary]:
        """Iterates over transactions with a verdict, the last decided first.

        Args:
            state: Only COMMITTED or ROLLED_BACK ones; None: both.
            producer_group: Only those of this producer group.
            source: Only those with a verdict from this source; None: from a producer, a check or an operator.
            since: Only those decided at this time or later; with its time zone.
            until: Only those decided before this time; with its time zone.
        """
        return self._each(
            self._core.list_decided_transactions(
                state=state, producer_group=producer_group, source=source, since=since, until=until
            )
        )

    def get_transaction(self, transaction_id: str) -> TransactionInfo:
        """Returns all that is known of a transaction."""
        return self._runner.run(self._core.get_transaction(transaction_id))

    def resolve_transaction(
        self, transaction_id: str, resolution: Resolution, reason: str, *, operator: str = ""
    ) -> TransactionResult:
        """Decides a transaction for its producer, or has it checked again.

        Args:
            transaction_id: Identity of the transaction.
            resolution: What to do.
            reason: Why; recorded with the transaction.
            operator: Name of the operator, recorded likewise; with access control, the principal's counts.

        Raises:
            RequestRefused: Among others with the reason ``VERDICT_CONFLICT``: it has the opposite verdict.
        """
        return self._runner.run(self._core.resolve_transaction(transaction_id, resolution, reason, operator=operator))

    def resolve_transactions(
        self,
        resolution: Resolution,
        reason: str = "",
        *,
        state: TransactionState | None = None,
        producer_group: str | None = None,
        topic: str | None = None,
        older_than: Span | None = None,
        prepared_before: datetime | None = None,
        operator: str = "",
        dry_run: bool = False,
    ) -> Iterator[ResolveProgress]:
        """Decides all matching transactions without a verdict, or has them checked again, as it is iterated over.

        At least one of ``state``, ``producer_group``, ``topic``, ``older_than`` and ``prepared_before`` is needed.

        Args:
            resolution: What to do.
            reason: Why; needed unless it is a dry run; recorded with each transaction.
            state: Only PREPARED or PARKED ones; None: both.
            producer_group: Only those of this producer group.
            topic: Only those with a message for this topic.
            older_than: Only those prepared at least this long ago, in seconds or as a timedelta.
            prepared_before: Only those prepared before this time, such as ``as_of`` of a dry run; with its time zone.
            operator: Name of the operator, recorded likewise; with access control, the principal's counts.
            dry_run: Only count those that match.

        Returns:
            Iterates over its progress. The last one has ``done``; stopping before leaves the rest unchanged.
        """
        return self._each(
            self._core.resolve_transactions(
                resolution,
                reason,
                state=state,
                producer_group=producer_group,
                topic=topic,
                older_than=older_than,
                prepared_before=prepared_before,
                operator=operator,
                dry_run=dry_run,
            )
        )

    def overview(self) -> Overview:
        """Returns what there is in all: transactions without a verdict by group and by age, messages, the database."""
        return self._runner.run(self._core.overview())

    def list_brokers(self) -> list[BrokerStatus]:
        """Returns the brokers on this database, by their names; one that stopped silently for some minutes more."""
        return self._runner.run(self._core.list_brokers())

    def list_clients(
        self, *, kind: ClientKind | None = None, group: str | None = None, broker_id: str | None = None
    ) -> Iterator[ConnectedClient]:
        """Iterates over clients with an open stream to any broker; each broker reports its own every few seconds.

        Args:
            kind: Only producers, or only consumers.
            group: Only those of this group, of producers or consumers.
            broker_id: Only those of this broker.
        """
        return self._each(self._core.list_clients(kind=kind, group=group, broker_id=broker_id))

    def list_group_lag(self, topic: str | None = None) -> Iterator[GroupLag]:
        """Iterates over the lag of all consumer groups, by group and topic; `topic`: only in this one."""
        return self._each(self._core.list_group_lag(topic))
