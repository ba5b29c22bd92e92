"""MySQL Group Replication: a primary is one that a majority of the group agrees with."""

from __future__ import annotations

from typing import Any

from broker.storage.engine.cluster.promise import FEW, Promise, too_few
from broker.storage.engine.cluster.role import Kind, Role, is_on, rows, variables
from broker.storage.engine.unsuitable import Unsuitable

_DENIED = {(1142,), (1143,), (1227,)}
MEMBERS = "performance_schema.replication_group_members"
STATS = "performance_schema.replication_group_member_stats"
HIDDEN = Unsuitable(
    "the database user may not read which server is the primary of its group",
    f"GRANT SELECT ON {MEMBERS} TO ..., GRANT SELECT ON {STATS} TO ...",
)
_ROLE = (
    f"SELECT m.member_id = @@GLOBAL.server_uuid, m.member_state, m.member_role, @@GLOBAL.super_read_only,"
    f" (SELECT s.view_id FROM {STATS} s WHERE s.member_id = @@GLOBAL.server_uuid LIMIT 1) FROM {MEMBERS} m"
)


def role_in_group(connection: Any) -> Role:
    """Asks a server which part it has in its group.

    One that was cut off from the majority still says PRIMARY, accepts statements, and would have every COMMIT wait. One
    that was frozen, or is just reached again, says so until it has heard of its expulsion: its view is an earlier one.
    """
    try:
        found = rows(connection, _ROLE)
    except Exception as error:
        if error.args[:1] not in _DENIED:
            raise
        return Role(Kind.GROUP, writable=False, reason=str(HIDDEN))
    own = next((row for row in found if row[0]), None)
    if own is None or own[1] == "OFFLINE":
        return Role(Kind.GROUP, writable=False, reason="it has not joined its group")
    _, state, part, read_only, view = own
    latest = _order_of(view)
    if state != "ONLINE" or part != "PRIMARY":
        return Role(Kind.GROUP, writable=False, reason=f"{part or 'member'}, {state}".lower(), view=latest)
    heard = sum(row[1] in {"ONLINE", "RECOVERING"} for row in found)
    if 2 * heard <= len(found):
        reason = f"primary without a majority: it reaches {heard} of {len(found)} members"
        return Role(Kind.GROUP, writable=False, reason=reason, view=latest)
    if int(read_only):
        return Role(Kind.GROUP, writable=False, reason="primary, not yet writable", view=latest)
    return Role(Kind.GROUP, writable=True, view=latest)


def _order_of(view: Any) -> tuple[int, int]:
    """A view's id: when the group began, a colon, and the number of its changes."""
    began, _, number = str(view or "").partition(":")
    return (int(began), int(number)) if began.isdigit() and number.isdigit() else (0, 0)


def promise_of_group(connection: Any) -> Promise:
    """What the group keeps, and the settings that would break it."""
    settings = variables(connection, "group_replication_single_primary_mode", "group_replication_consistency")
    try:
        members = len(rows(connection, f"SELECT member_id FROM {MEMBERS}"))
        rows(connection, f"SELECT view_id FROM {STATS} LIMIT 1")
    except Exception as error:
        if error.args[:1] not in _DENIED:
            raise
        return Promise("what is not known", [HIDDEN])
    consistency = settings.get("group_replication_consistency", "unknown")
    promise = Promise(
        f"the loss of {(members - 1) // 2} of {members} servers of the group, for a majority has received it before it"
        f" is acknowledged (group_replication_consistency is {consistency}); if all lose power at once, what the"
        " primary has written to its disk"
    )
    if not is_on(settings.get("group_replication_single_primary_mode")):
        promise.unsafe.append(
            Unsuitable(
                "the group has several primaries: a lock on one does not hold on another, and writes to two would"
                " contradict each other",
                "switch to one (SELECT group_replication_switch_to_single_primary_mode())",
            )
        )
    if consistency == "EVENTUAL":
        promise.unsafe.append(
            Unsuitable(
                "group_replication_consistency is EVENTUAL: a new primary answers before it has applied what was"
                " acknowledged",
                "set it to BEFORE_ON_PRIMARY_FAILOVER (SET GLOBAL, and in my.cnf of each member)",
            )
        )
    if members < FEW:
        promise.warnings.append(too_few("group", members))
    return promise
