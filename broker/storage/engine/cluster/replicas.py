"""A server that stands alone, or replicates to others: an operator or a tool decides which one accepts writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.storage.engine.cluster.promise import Promise
from broker.storage.engine.cluster.role import Kind, Role, is_on, rows, statuses, variables
from broker.storage.engine.unsuitable import Unsuitable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONG = 86_400_000
"""Milliseconds without an acknowledgement of a replica before falling back, as good as never: operators see that."""
_OFF = {"0", "OFF"}
_SEMISYNC = {
    "enabled": ("rpl_semi_sync_source_enabled", "rpl_semi_sync_master_enabled"),
    "answers": ("rpl_semi_sync_replica_enabled", "rpl_semi_sync_slave_enabled"),
    "point": ("rpl_semi_sync_source_wait_point", "rpl_semi_sync_master_wait_point"),
    "timeout": ("rpl_semi_sync_source_timeout", "rpl_semi_sync_master_timeout"),
    "keeps_waiting": ("rpl_semi_sync_source_wait_no_replica", "rpl_semi_sync_master_wait_no_slave"),
}
"""Variables of semi-synchronous replication: newer MySQL's names, and those of MariaDB."""
_SEMISYNC_STATUS = ("Rpl_semi_sync_source_status", "Rpl_semi_sync_master_status")
_ON_THIS_SERVER = "a crash of the server and of its machine, but not the loss of its disk"


def role_by_settings(connection: Any) -> Role:
    """By its settings."""
    ((read_only, of_storage),) = rows(connection, "SELECT @@GLOBAL.read_only, @@GLOBAL.innodb_read_only")
    if str(of_storage).upper() not in _OFF:
        return Role(Kind.ALONE, writable=False, reason="innodb_read_only is on")
    if str(read_only).upper() not in _OFF:
        return Role(Kind.ALONE, writable=False, reason="read_only is on")
    return Role(Kind.ALONE, writable=True)


def _ignores_read_only(connection: Any) -> bool:
    """MariaDB: whether the user writes also while read_only is on; MySQL's super_read_only binds everybody."""
    if variables(connection, "super_read_only"):
        return False
    grantee = "CONCAT('\\'', REPLACE(CURRENT_USER(), '@', '\\'@\\''), '\\'')"
    privileges = "SELECT 1 FROM information_schema.user_privileges WHERE privilege_type = 'READ_ONLY ADMIN'"
    return bool(rows(connection, f"{privileges} AND grantee = {grantee}"))


def promise_of_replicas(connection: Any, servers: int, *, primary: bool = True) -> Promise:
    """What replicas keep, and the settings that would break it.

    Args:
        connection: of the driver.
        servers: how many the URL names.
        primary: whether it is the source; a replica is asked for what would hold if it was.
    """
    promise = _promise_of_replicas(connection, servers, primary)
    if servers > 1 and _ignores_read_only(connection):
        promise.warnings.append(
            Unsuitable(
                "the database user has the privilege READ_ONLY ADMIN: until a broker has noticed a failover it goes on"
                " writing to the old source",
                "REVOKE READ ONLY ADMIN ON *.* FROM ...",
            )
        )
    return promise


def _promise_of_replicas(connection: Any, servers: int, primary: bool) -> Promise:
    names = [name for pair in _SEMISYNC.values() for name in pair]
    found = variables(connection, *names)
    given = {key: next((found[name] for name in pair if name in found), "") for key, pair in _SEMISYNC.items()}
    named = {key: next((name for name in pair if name in found), pair[0]) for key, pair in _SEMISYNC.items()}
    # A replica must not wait for one of its own. Whoever makes it the source has it do so.
    if not is_on(given["enabled"]) and (primary or not is_on(given["answers"])):
        promise = Promise(_ON_THIS_SERVER)
        if servers > 1:
            promise.warnings.append(
                Unsuitable(
                    f"{servers} servers are named, and replication between them is asynchronous: after a failover the"
                    " last acknowledged commits are missing",
                    "use semi-synchronous replication (AFTER_SYNC), Group Replication or Galera",
                )
            )
        return promise
    # A replica's is off: it is that of a source.
    status = "ON" if not primary else next(iter(statuses(connection, *_SEMISYNC_STATUS).values()), "")
    promise = Promise(
        "the loss of this server, for a replica has it in its relay log before it is acknowledged"
        f" ({named['point']} is {given['point']}; a commit waits {given['timeout']} ms for that)"
    )
    promise.warnings += [each for look in _LOOKS if (each := look(given, named, status)) is not None]
    return promise


def _falls_back(given: Mapping[str, str], named: Mapping[str, str], status: str) -> Unsuitable | None:
    del status
    if int(given["timeout"] or 0) >= LONG:
        return None
    return Unsuitable(
        f"{named['timeout']} is {given['timeout']} ms: without an answer of a replica for so long, commits are"
        " acknowledged that only this server has",
        f"set it to {LONG} or more, in my.cnf of each server; then a source without its replica waits",
    )


def _gives_up(given: Mapping[str, str], named: Mapping[str, str], status: str) -> Unsuitable | None:
    del status
    if is_on(given["keeps_waiting"]):
        return None
    return Unsuitable(
        f"{named['keeps_waiting']} is off: as soon as no replica is connected, commits are acknowledged that only this"
        " server has",
        "set it to ON, in my.cnf of each server",
    )


def _shows_early(given: Mapping[str, str], named: Mapping[str, str], status: str) -> Unsuitable | None:
    del status
    if given["point"] == "AFTER_SYNC":
        return None
    return Unsuitable(
        f"{named['point']} is {given['point']}: consumers get messages that no replica has, and that are gone"
        " after a failover",
        "set it to AFTER_SYNC, in my.cnf of each server",
    )


def _is_off(given: Mapping[str, str], named: Mapping[str, str], status: str) -> Unsuitable | None:
    del given, named
    if is_on(status):
        return None
    return Unsuitable(
        "semi-synchronous replication is switched on, but not at work: commits are acknowledged that only this server"
        " has",
        "start the replica, with semi-synchronous replication switched on there, too",
    )


_LOOKS: tuple[Callable[[Mapping[str, str], Mapping[str, str], str], Unsuitable | None], ...] = (
    _falls_back,
    _gives_up,
    _shows_early,
    _is_off,
)
