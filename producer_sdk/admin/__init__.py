"""What operators do, as Python calls: topics, consumer groups, dead letters, and what became of a message.

For tests, examples and jobs; for people there is docs/grpcurl.md. Both SDKs have it under the same names.
"""

from __future__ import annotations

from producer_sdk.admin.admin import Admin
from producer_sdk.admin.async_admin import AsyncAdmin
from producer_sdk.admin.groups import ExhaustedPolicy, GroupInfo, GroupMode, GroupProgress
from producer_sdk.admin.messages import (
    DeadLetter,
    MessageInfo,
    RedriveProgress,
    TimelineEvent,
    TimelineEventType,
)
from producer_sdk.admin.topics import TopicInfo

__all__ = [
    "Admin",
    "AsyncAdmin",
    "DeadLetter",
    "ExhaustedPolicy",
    "GroupInfo",
    "GroupMode",
    "GroupProgress",
    "MessageInfo",
    "RedriveProgress",
    "TimelineEvent",
    "TimelineEventType",
    "TopicInfo",
]
