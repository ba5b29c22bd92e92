"""All ports together, as the storage implements them."""

from __future__ import annotations

from typing import Protocol

from broker.ports.checks import CheckHistory, CheckStore
from broker.ports.delivery import GroupWatch, LeaseStore, ReceiptStore
from broker.ports.epochs import EpochStore
from broker.ports.groups import DeadLetterStore, GroupNames, GroupStore
from broker.ports.log import LogStore, QueueHeads, QueueStore
from broker.ports.queries import MessageQueryStore
from broker.ports.topics import QueueNames, TopicNames, TopicStore
from broker.ports.transactions import ProducerGroups, TransactionRecords, TransactionStore


class Storage(
    TransactionStore,
    TransactionRecords,
    ProducerGroups,
    CheckStore,
    CheckHistory,
    EpochStore,
    LogStore,
    QueueStore,
    QueueHeads,
    LeaseStore,
    ReceiptStore,
    GroupWatch,
    GroupNames,
    GroupStore,
    DeadLetterStore,
    TopicNames,
    QueueNames,
    TopicStore,
    MessageQueryStore,
    Protocol,
):
    """All of it, as one database gives it."""
