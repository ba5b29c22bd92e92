"""AdminService."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.access_admin_servicer import AccessAdminServicer
from broker.api.cluster_admin_servicer import ClusterAdminServicer
from broker.api.group_admin_servicer import GroupAdminServicer
from broker.api.topic_admin_servicer import TopicAdminServicer
from broker.api.transaction_admin_servicer import TransactionAdminServicer

if TYPE_CHECKING:
    from broker.domain.clock import Clock
    from broker.services.operating.access import AccessOperations
    from broker.services.operating.cluster import ClusterOperations
    from broker.services.operating.dead_letters import DeadLetterService
    from broker.services.operating.groups import GroupService
    from broker.services.operating.topics import TopicService
    from broker.services.operating.transactions import TransactionOperations


class AdminServicer(
    TopicAdminServicer, GroupAdminServicer, TransactionAdminServicer, ClusterAdminServicer, AccessAdminServicer
):
    """Implements AdminService: administration."""

    def __init__(
        self,
        topics: TopicService,
        groups: GroupService,
        dead_letters: DeadLetterService,
        transactions: TransactionOperations,
        cluster: ClusterOperations,
        access: AccessOperations,
        clock: Clock,
    ) -> None:
        """Takes the services it exposes, and the database's clock."""
        self._topics = topics
        self._groups = groups
        self._dead_letters = dead_letters
        self._transactions = transactions
        self._cluster = cluster
        self._access = access
        self._clock = clock
