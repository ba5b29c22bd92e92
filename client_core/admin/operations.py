"""The part of the synchronous admin client that is about transactions, brokers, clients, and the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client_core.admin.runner import AdminRunner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from client_core.admin.cluster import BrokerStatus, ClientKind, ConnectedClient, GroupLag, Overview
    from client_core.admin.configuration import ConfigurationChange
    from client_core.admin.transactions import Resolution, ResolveProgress, TransactionSummary
    from client_core.results import TransactionInfo, TransactionResult
    from client_core.states import TransactionState, VerdictSource
    from client_core.times import Span

__all__ = ["Operations"]


class Operations(AdminRunner):
    """Transactions, brokers, clients, and the configuration."""

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

    def overview(self, *, wait: Span | None = None) -> Overview:
        """Returns what there is in all: transactions without a verdict by group and by age, messages, the database.

        Args:
            wait: How long to wait for a new count; the last figures are returned after that, whatever their age, or
                empty ones without a time where nothing was counted yet. None: until it is counted.
        """
        return self._runner.run(self._core.overview(wait=wait))

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

    def export_configuration(self, *, rights: bool = True) -> dict[str, Any]:
        """Returns topics, groups, filters, rules and quotas as a document; without dead letter topics.

        Args:
            rights: Rules and quotas, too; otherwise the document has no such sections.

        Returns:
            What YAML and JSON can hold; apply_configuration takes it.
        """
        return self._runner.run(self._core.export_configuration(rights=rights))

    def plan_configuration(self, document: object, *, prune: bool = False) -> list[ConfigurationChange]:
        """Compares a document with what there is, and changes nothing.

        Args:
            document: As export_configuration returns it. What it does not name stays as it is.
            prune: Delete what its sections do not name; a section that it does not have stays as it is.

        Returns:
            The changes that it asks for, in the order in which they are made; empty when there is none.

        Raises:
            ConfigurationError: It has something unknown, or asks for something impossible; its field says where.
        """
        return self._runner.run(self._core.plan_configuration(document, prune=prune))

    def apply_changes(self, changes: Iterable[ConfigurationChange]) -> Iterator[ConfigurationChange]:
        """Makes planned changes, as it is iterated over; each is returned when it is done."""
        return self._each(self._core.apply_changes(changes))

    def apply_configuration(
        self, document: object, *, prune: bool = False, dry_run: bool = False
    ) -> list[ConfigurationChange]:
        """Makes what a document asks for; repeated, it changes nothing.

        Args:
            document: As export_configuration returns it. What it does not name stays as it is.
            prune: Delete what its sections do not name.
            dry_run: Change nothing.

        Returns:
            The changes that were made, or would be.

        Raises:
            ConfigurationError: It has something unknown, or asks for something impossible; nothing was changed.
        """
        return self._runner.run(self._core.apply_configuration(document, prune=prune, dry_run=dry_run))
