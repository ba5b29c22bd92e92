"""What brokers rely on in a cluster: acknowledged rows survive its primary, one that is cut off acknowledges none."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pymysql
import pytest

from support.clusters import CLUSTER_KINDS, ClusterKind, PrivateCluster
from support.databases import connect
from support.gateways import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


WAITS = 2.0
"""How long a client waits for a commit that is not acknowledged, in seconds."""


# A start takes ten seconds; the pairs differ in little.
KINDS: tuple[ClusterKind, ...] = ("mysql-cluster", "mariadb-cluster", "mariadb-pair")


@pytest.fixture(params=CLUSTER_KINDS if os.environ.get("HALFMQ_ACCEPTANCE_EVERYWHERE") else KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PrivateCluster]:
    with PrivateCluster(request.param, tmp_path) as started:
        execute(started, started.primary, "CREATE TABLE said (what VARCHAR(40) PRIMARY KEY)")
        yield started


def execute(cluster: PrivateCluster, member: int, statement: str, timeout: float = 20.0) -> None:
    with (
        closing(connect(cluster.url_of(member), read_timeout=timeout)) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
        connection.commit()


def say(cluster: PrivateCluster, member: int, what: str, timeout: float = 20.0) -> None:
    execute(cluster, member, f"INSERT INTO said VALUES ('{what}')", timeout)


def heard(cluster: PrivateCluster, member: int) -> set[str]:
    with closing(connect(cluster.url_of(member))) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT what FROM said")
        return {what for (what,) in cursor.fetchall()}


def reads(cluster: PrivateCluster, member: int) -> set[str]:
    """What it has heard, or why it does not tell: it may still be joining."""
    try:
        return heard(cluster, member)
    except pymysql.err.OperationalError as error:
        return {str(error)}


def take_over(cluster: PrivateCluster, lost: int) -> int:
    """Another member that is writable: of a pair, the one that an operator has promoted."""
    if cluster.kind.endswith("-pair"):
        cluster.promote(3 - lost)
    return cluster.primary_beside(lost)


def test_what_is_acknowledged_survives_the_primary_and_a_primary_cut_off_acknowledges_nothing(
    cluster: PrivateCluster,
) -> None:
    first = cluster.primary
    say(cluster, first, "before its death")
    cluster.kill(first)
    second = take_over(cluster, lost=first)
    assert heard(cluster, second) == {"before its death"}

    cluster.restart(first)
    say(cluster, second, "after its return")
    eventually(partial(reads, cluster, first), {"before its death", "after its return"}.__eq__)

    cluster.isolate(second)
    with pytest.raises(pymysql.err.OperationalError, match="Lost connection"):
        say(cluster, second, "to nobody", timeout=WAITS)
    third = take_over(cluster, lost=second)
    cluster.heal(second)
    say(cluster, third, "after the partition")
    whole = {"before its death", "after its return", "after the partition"}
    for member in cluster.members:
        eventually(partial(reads, cluster, member), whole.__eq__)


def test_the_next_start_ends_the_cluster_of_a_run_that_was_killed(tmp_path: Path) -> None:
    run = subprocess.Popen(["sleep", "600"])
    left = PrivateCluster("mariadb-pair", tmp_path, {"HALFMQ_DB_OWNER": str(run.pid)})
    left.start()
    run.kill()
    run.wait()
    processes = {left.pid(member) for member in left.members}
    with PrivateCluster("mariadb-pair", tmp_path) as started:
        assert processes.isdisjoint({started.pid(member) for member in started.members})
        assert started.writable == [1]
        # Whoever has to learn of their end may not have done so yet.
        eventually(lambda: not any(Path(f"/proc/{process}").exists() for process in processes))
