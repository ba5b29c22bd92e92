"""Administration: topics, consumer groups, dead letters, and the history of messages.

For tests, examples and jobs; people use `halfmq admin` (docs/admin.md). Both SDKs export it under the same names.
"""

from __future__ import annotations

from client_core.admin.access import AccessRule, AuditOutcome, AuditRecord, Quota
from client_core.admin.admin import Admin
from client_core.admin.async_admin import AsyncAdmin
from client_core.admin.cluster import (
    AgeBucket,
    BrokerHealth,
    BrokerStatus,
    ClientKind,
    ConnectedClient,
    GroupLag,
    Overview,
    PendingOfGroup,
)
from client_core.admin.configuration import ConfigurationChange
from client_core.admin.groups import ExhaustedPolicy, GroupInfo, GroupMode, GroupProgress
from client_core.admin.messages import (
    DeadLetter,
    MessageInfo,
    PurgeProgress,
    RedriveProgress,
    TimelineEvent,
    TimelineEventType,
)
from client_core.admin.topics import Compression, QueueInfo, TopicInfo
from client_core.admin.transactions import Resolution, ResolveProgress, TransactionSummary

__all__ = [
    "AccessRule",
    "Admin",
    "AgeBucket",
    "AsyncAdmin",
    "AuditOutcome",
    "AuditRecord",
    "BrokerHealth",
    "BrokerStatus",
    "ClientKind",
    "Compression",
    "ConfigurationChange",
    "ConnectedClient",
    "DeadLetter",
    "ExhaustedPolicy",
    "GroupInfo",
    "GroupLag",
    "GroupMode",
    "GroupProgress",
    "MessageInfo",
    "Overview",
    "PendingOfGroup",
    "PurgeProgress",
    "QueueInfo",
    "Quota",
    "RedriveProgress",
    "Resolution",
    "ResolveProgress",
    "TimelineEvent",
    "TimelineEventType",
    "TopicInfo",
    "TransactionSummary",
]
