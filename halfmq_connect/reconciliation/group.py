"""The consumer group that records: a message that it counts as handled must have a record.

If it had none, a round would find the row without a message and send a second one. So the group passes over nothing: it
has no last attempt, after which a message becomes a dead letter, and no filter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_core.admin import Admin, ExhaustedPolicy, GroupMode
from client_core.errors import ConfigurationError, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client_core.admin import GroupInfo
    from client_core.connection import Endpoint
    from client_core.stored import StoredMessage

__all__ = ["dead_letters", "make_group"]

_ANOTHER = "give Reconciliation another group"


def make_group(endpoint: Endpoint, group: str, topic: str) -> None:
    """Creates the group, or checks the one that exists.

    Raises:
        ConfigurationError: It exists, and would pass over messages.
        HalfmqError: The broker refused, or none answered.
    """
    with Admin(endpoint) as admin:
        found = admin.create_group(
            group, when_exhausted=ExhaustedPolicy.RETRY, start="earliest", keep_unread=True, exist_ok=True
        )
    if faults := _faults(found, topic):
        reason, remedy = faults[0]
        msg = f"group {group!r} exists and cannot record the messages of {topic}: {reason}; {remedy}"
        raise ConfigurationError(msg, field="group")


def _faults(group: GroupInfo, topic: str) -> list[tuple[str, str]]:
    """What has a group pass over messages, and what to do about it."""
    update = f"Admin.update_group({group.name!r}, "
    faults = []
    if group.mode is not GroupMode.CLUSTERING:
        faults.append(("it is broadcasting, so that each process has a position of its own", _ANOTHER))
    if topic in group.filters:
        faults.append(("it has a filter, and counts as handled what that leaves out", _ANOTHER))
    if group.start not in {None, "earliest"}:
        faults.append((f"it starts at {group.start}, and skips the messages before", _ANOTHER))
    if group.when_exhausted is not ExhaustedPolicy.RETRY:
        remedy = f"set it by {update}when_exhausted=ExhaustedPolicy.RETRY)"
        faults.append((f"a message becomes a dead letter after {group.max_attempts} attempts", remedy))
    if not group.keep_unread:
        faults.append(("retention deletes what it has not recorded", f"set it by {update}keep_unread=True)"))
    return faults


def dead_letters(endpoint: Endpoint, group: str, topic: str) -> Iterator[StoredMessage]:
    """The dead letters of a topic's messages, with the keys, properties and bodies of those.

    Raises:
        HalfmqError: The broker refused, or none answered.
    """
    with Admin(endpoint) as admin:
        try:
            for letter in admin.list_dead_letters(group):
                if letter.origin.topic == topic:
                    yield letter.message
        except RequestRefused as error:
            if error.reason != "TOPIC_NOT_FOUND":
                raise
