"""What servers say of themselves where a real cluster is hard to bring to it: roles, and settings that are told of."""

from __future__ import annotations

from typing import Any, Self

import pytest

from broker.storage.engine.cluster.galera import promise_of_galera, role_in_cluster
from broker.storage.engine.cluster.group_replication import promise_of_group, role_in_group
from broker.storage.engine.cluster.replicas import LONG, promise_of_replicas


class Server:
    """A connection of the driver that answers by the first of these words that a statement has."""

    def __init__(self, **answers: list[tuple[Any, ...]]) -> None:
        self._answers = answers
        self._found: list[tuple[Any, ...]] = []

    def cursor(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, sql: str, _: object = None) -> None:
        self._found = next(answer for word, answer in self._answers.items() if word in sql)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._found


ME, OTHER = 1, 0
VIEW = "17000:4"


def member(whose: int, state: str = "ONLINE", part: str = "SECONDARY", read_only: int = 0) -> tuple[Any, ...]:
    """A row of the group's members, as the broker asks for it."""
    return (whose, state, part, read_only, VIEW)


PRIMARY = member(ME, part="PRIMARY")


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([PRIMARY, member(OTHER), member(OTHER)], ""),
        ([PRIMARY, member(OTHER), member(OTHER, "UNREACHABLE")], ""),
        ([PRIMARY, member(OTHER, "RECOVERING"), member(OTHER, "UNREACHABLE")], ""),
        (
            [PRIMARY, member(OTHER, "UNREACHABLE"), member(OTHER, "UNREACHABLE")],
            "primary without a majority: it reaches 1 of 3 members",
        ),
        (
            [PRIMARY, member(OTHER, "UNREACHABLE")],
            "primary without a majority: it reaches 1 of 2 members",
        ),
        ([member(ME), member(OTHER, part="PRIMARY"), member(OTHER)], "secondary, online"),
        ([member(ME, "ERROR", ""), member(OTHER, part="PRIMARY")], "member, error"),
        ([member(ME, part="PRIMARY", read_only=1), member(OTHER), member(OTHER)], "primary, not yet writable"),
        ([member(ME, "OFFLINE", "")], "it has not joined its group"),
        ([], "it has not joined its group"),
    ],
)
def test_roles_in_a_group(members: list[tuple[Any, ...]], reason: str) -> None:
    role = role_in_group(Server(replication_group_members=members))
    assert (role.writable, role.reason) == (not reason, reason)


def group(members: int, **settings: str) -> Server:
    given = {
        "group_replication_single_primary_mode": "ON",
        "group_replication_consistency": "BEFORE_ON_PRIMARY_FAILOVER",
        **settings,
    }
    return Server(
        VARIABLES=list(given.items()),
        replication_group_member_stats=[(VIEW,)],
        replication_group_members=[(str(number),) for number in range(members)],
    )


def told(promise: Any) -> tuple[list[str], list[str]]:
    return [str(each) for each in promise.unsafe], [str(each) for each in promise.warnings]


def test_a_group_of_three_or_five_is_told_nothing() -> None:
    for members, lost in ((3, 1), (5, 2)):
        promise = promise_of_group(group(members))
        assert told(promise) == ([], [])
        assert f"the loss of {lost} of {members} servers" in promise.survives
        assert "group_replication_consistency is BEFORE_ON_PRIMARY_FAILOVER" in promise.survives


def test_settings_of_a_group() -> None:
    (unsafe,), _ = told(promise_of_group(group(3, group_replication_single_primary_mode="OFF")))
    assert "several primaries" in unsafe
    (unsafe,), _ = told(promise_of_group(group(3, group_replication_consistency="EVENTUAL")))
    assert "group_replication_consistency is EVENTUAL" in unsafe
    assert told(promise_of_group(group(3, group_replication_consistency="AFTER"))) == ([], [])
    _, (few,) = told(promise_of_group(group(2)))
    assert "the group has 2 servers" in few


def galera(nodes: int, options: str) -> Server:
    return Server(STATUS=[("wsrep_cluster_size", str(nodes))], VARIABLES=[("wsrep_provider_options", options)])


def test_settings_of_galera() -> None:
    usual = "evs.suspect_timeout = PT5S; pc.ignore_quorum = false; pc.ignore_sb = false; pc.weight = 1; "
    promise = promise_of_galera(galera(3, usual))
    assert told(promise) == ([], [])
    assert "certified it before" in promise.survives
    assert "(wsrep_sync_wait)" in promise.survives
    (unsafe,), _ = told(promise_of_galera(galera(3, usual.replace("ignore_quorum = false", "ignore_quorum = true"))))
    assert "pc.ignore_quorum is set" in unsafe
    (unsafe,), _ = told(promise_of_galera(galera(3, usual.replace("ignore_sb = false", "ignore_sb = YES"))))
    assert "pc.ignore_sb is set" in unsafe
    _, (few,) = told(promise_of_galera(galera(1, usual)))
    assert "the cluster has 1 server:" in few


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({}, ""),
        ({"wsrep_cluster_status": "non-Primary"}, "no quorum: its component is non-Primary"),
        ({"wsrep_cluster_status": "Disconnected"}, "no quorum: its component is Disconnected"),
        ({"wsrep_local_state_comment": "Joined"}, "not ready: Joined"),
        ({"wsrep_ready": "OFF"}, "not ready: Synced"),
        ({"wsrep_local_state_comment": "Donor/Desynced"}, ""),
        ({"wsrep_gcomm_uuid": "b"}, "brokers write to another node"),
    ],
)
def test_roles_in_galera(status: dict[str, str], reason: str) -> None:
    given = {
        "wsrep_ready": "ON",
        "wsrep_cluster_status": "Primary",
        "wsrep_local_state_comment": "Synced",
        "wsrep_gcomm_uuid": "a",
        "wsrep_cluster_state_uuid": "c",
        "wsrep_cluster_conf_id": "3",
        **status,
    }
    role = role_in_cluster(Server(STATUS=list(given.items()), cluster_writer=[("a#2", 7)]), "cluster_writer")
    assert (role.writable, role.reason) == (not reason, reason)


MYSQL = {
    "rpl_semi_sync_source_enabled": "ON",
    "rpl_semi_sync_replica_enabled": "ON",
    "rpl_semi_sync_source_wait_point": "AFTER_SYNC",
    "rpl_semi_sync_source_timeout": str(LONG),
    "rpl_semi_sync_source_wait_no_replica": "ON",
    "super_read_only": "OFF",
}
MARIADB = {
    "rpl_semi_sync_master_enabled": "ON",
    "rpl_semi_sync_slave_enabled": "ON",
    "rpl_semi_sync_master_wait_point": "AFTER_SYNC",
    "rpl_semi_sync_master_timeout": str(LONG),
    "rpl_semi_sync_master_wait_no_slave": "ON",
}


def pair(settings: dict[str, str], *, works: str = "ON", **changed: str) -> Server:
    names = list(settings)
    given = {**settings, **{next(name for name in names if name.endswith(end)): to for end, to in changed.items()}}
    status = "Rpl_semi_sync_source_status" if settings is MYSQL else "Rpl_semi_sync_master_status"

    class OfPair(Server):
        def execute(self, sql: str, _: object = None) -> None:
            super().execute(sql)
            if "VARIABLES" in sql:
                self._found = [row for row in self._found if f"'{row[0]}'" in sql]

    return OfPair(VARIABLES=list(given.items()), STATUS=[(status, works)], user_privileges=[])


@pytest.mark.parametrize("settings", [MYSQL, MARIADB], ids=["mysql", "mariadb"])
def test_settings_of_a_pair(settings: dict[str, str]) -> None:
    def warnings(*, primary: bool = True, **changed: str) -> list[str]:
        unsafe, warned = told(promise_of_replicas(pair(settings, **changed), 2, primary=primary))
        assert unsafe == []
        return warned

    assert warnings() == []
    survives = promise_of_replicas(pair(settings), 2).survives
    assert f"wait_point is AFTER_SYNC; a commit waits {LONG} ms" in survives
    for changed, words in (
        ({"timeout": "10000"}, "timeout is 10000 ms"),
        ({"wait_point": "AFTER_COMMIT"}, "wait_point is AFTER_COMMIT"),
        ({"wait_no_replica" if settings is MYSQL else "wait_no_slave": "OFF"}, "is off: as soon as no replica"),
        (
            {"source_enabled" if settings is MYSQL else "master_enabled": "OFF"},
            "replication between them is asynchronous",
        ),
        ({"works": "OFF"}, "switched on, but not at work"),
    ):
        (warned,) = warnings(**changed)
        assert words in warned
    # A replica's own is off until it is the source.
    source, replica = ("source", "replica") if settings is MYSQL else ("master", "slave")
    assert warnings(primary=False, works="OFF", **{f"{source}_enabled": "OFF"}) == []
    (warned,) = warnings(primary=False, **{f"{source}_enabled": "OFF", "timeout": "10000"})
    assert "timeout is 10000 ms" in warned
    (warned,) = warnings(primary=False, **{f"{source}_enabled": "OFF", f"{replica}_enabled": "OFF"})
    assert "replication between them is asynchronous" in warned
