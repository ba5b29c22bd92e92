"""All ports together, as the storage has them."""

from __future__ import annotations

from typing import Protocol

from broker.ports.checks import CheckStore
from broker.ports.delivery import LeaseStore
from broker.ports.epochs import SinkStore
from broker.ports.groups import GroupStore
from broker.ports.log import LogStore
from broker.ports.queries import QueryStore
from broker.ports.topics import CatalogStore
from broker.ports.transactions import TransactionStore


class Storage(
    TransactionStore, CheckStore, SinkStore, LogStore, LeaseStore, CatalogStore, QueryStore, GroupStore, Protocol
):
    """All of it, as one database gives it."""
