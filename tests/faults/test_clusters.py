"""Clusters of databases: what brokers ask of them, and what they keep when members are killed, frozen and cut off.

HALFMQ_CLUSTER_CYCLES is the number of cycles under load, over all kinds of clusters (6; the full campaign is 200),
HALFMQ_FAULT_SEED is the seed of the first one. HALFMQ_FAULT_FIGURES names a file for a line of JSON of each cycle.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import pymysql
import pytest

from broker.storage.engine.cluster.galera import role_in_cluster
from broker.storage.engine.cluster.galera_writer import take_over, wait_for_others
from broker.storage.engine.connection import Database
from broker.storage.migrations import migrate
from faults.client import Client, message
from faults.clusters.cycle import primary_of, run_cycle
from faults.load import CHECKS
from support.brokers import BrokerProcess
from support.clusters import CLUSTER_KINDS, ClusterKind, PrivateCluster
from support.command import run
from support.databases import connect
from support.serving import run_serve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CYCLES = int(os.environ.get("HALFMQ_CLUSTER_CYCLES") or 0)
SEED = int(os.environ.get("HALFMQ_FAULT_SEED") or random.randrange(1 << 30))
SHARE = -(-CYCLES // len(CLUSTER_KINDS))
# Little, so that clients see what happens.
BROKER = {**CHECKS, "reconnect_timeout": 2, "answer_timeout": 8}
SHORT: dict[ClusterKind, list[int]] = {
    "mysql-cluster": [0, 10],
    "mariadb-cluster": [1, 11],
    "mysql-pair": [1],
    "mariadb-pair": [0],
}
"""Seeds of a short run: the trouble that each engine is there for, and one that takes its quorum."""

pytestmark = pytest.mark.timeout(600 + 240 * SHARE)


@pytest.fixture(scope="module", params=CLUSTER_KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateCluster]:
    with PrivateCluster(request.param, tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def database(cluster: PrivateCluster) -> str:
    """A database for brokers, and one of the test's own."""
    primary = cluster.primary
    run_on(
        cluster,
        primary,
        "CREATE DATABASE halfmq_cluster",
        "CREATE DATABASE halfmq_cluster_probe",
        "CREATE TABLE halfmq_cluster_probe.probe (id INT PRIMARY KEY, value VARCHAR(36))",
    )
    return f"{cluster.url.rpartition('/')[0]}/halfmq_cluster"


def run_on(cluster: PrivateCluster, member: int, *statements: str) -> None:
    with connect(cluster.url_of(member), autocommit=True) as own, own.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_nothing_acknowledged_is_lost(cluster: PrivateCluster, database: str) -> None:
    wrong: dict[int, list[str]] = {}
    with BrokerProcess(database, **BROKER) as one, BrokerProcess(database, **BROKER) as two:
        for seed in range(SEED, SEED + SHARE) if CYCLES else SHORT[cluster.kind]:
            found = run_cycle(cluster, database, [one, two], seed)
            if found:
                wrong[seed] = found
    assert wrong == {}


SURVIVES: dict[ClusterKind, str] = {
    "mysql-cluster": "the loss of 1 of 3 servers of the group",
    "mariadb-cluster": "the loss of 1 of 3 nodes of the Galera cluster",
    "mysql-pair": "the loss of this server, for a replica has it",
    "mariadb-pair": "the loss of this server, for a replica has it",
}


def test_brokers_and_the_doctor_tell_what_an_acknowledged_commit_survives(
    cluster: PrivateCluster, database: str
) -> None:
    with BrokerProcess(database) as broker:
        broker.await_log("an acknowledged commit survives", SURVIVES[cluster.kind])
        assert broker.count("[warning") == 0, broker.log
        done = run(
            "doctor", "--only", "settings", "--only", "servers", "--verbose", variables={"HALFMQ_DATABASE": database}
        )
    assert SURVIVES[cluster.kind] in done.stdout
    primary = cluster.url_of(primary_of(cluster, database)).rpartition("@")[2].partition("/")[0]
    assert f"{primary} is the primary" in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr


class Setting(NamedTuple):
    """A setting that breaks a promise, on every member; what takes it back, and words of the refusal or the warning."""

    on: ClusterKind
    broken: str
    mended: str
    words: str
    refused: bool = True


SETTINGS = [
    Setting(
        "mysql-cluster",
        "SET GLOBAL group_replication_consistency = 'EVENTUAL'",
        "SET GLOBAL group_replication_consistency = 'BEFORE_ON_PRIMARY_FAILOVER'",
        "group_replication_consistency is EVENTUAL",
    ),
    Setting(
        "mariadb-cluster",
        "SET GLOBAL wsrep_provider_options = 'pc.ignore_sb=true'",
        "SET GLOBAL wsrep_provider_options = 'pc.ignore_sb=false'",
        "pc.ignore_sb is set",
    ),
    Setting(
        "mariadb-cluster",
        "SET GLOBAL wsrep_provider_options = 'pc.ignore_quorum=true'",
        "SET GLOBAL wsrep_provider_options = 'pc.ignore_quorum=false'",
        "pc.ignore_quorum is set",
    ),
    Setting(
        "mysql-pair",
        "SET GLOBAL rpl_semi_sync_source_timeout = 10000",
        "SET GLOBAL rpl_semi_sync_source_timeout = 100000000000",
        "rpl_semi_sync_source_timeout is 10000 ms",
        refused=False,
    ),
    Setting(
        "mysql-pair",
        "SET GLOBAL rpl_semi_sync_source_wait_no_replica = OFF",
        "SET GLOBAL rpl_semi_sync_source_wait_no_replica = ON",
        "rpl_semi_sync_source_wait_no_replica is off",
        refused=False,
    ),
    Setting(
        "mariadb-pair",
        "SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_COMMIT'",
        "SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'",
        "rpl_semi_sync_master_wait_point is AFTER_COMMIT",
        refused=False,
    ),
    Setting(
        "mariadb-pair",
        "SET GLOBAL rpl_semi_sync_master_wait_no_slave = OFF",
        "SET GLOBAL rpl_semi_sync_master_wait_no_slave = ON",
        "rpl_semi_sync_master_wait_no_slave is off",
        refused=False,
    ),
]


def settings_of(cluster: PrivateCluster) -> list[Setting]:
    return [each for each in SETTINGS if each.on == cluster.kind]


def other_member(cluster: PrivateCluster, database: str) -> int:
    """One that brokers do not write to."""
    return next(member for member in cluster.members if member != primary_of(cluster, database))


@contextmanager
def set_on(cluster: PrivateCluster, setting: Setting, members: Iterable[int]) -> Iterator[None]:
    for member in members:
        run_on(cluster, member, setting.broken)
    try:
        yield
    finally:
        for member in members:
            run_on(cluster, member, setting.mended)


def test_a_setting_that_breaks_the_promise_is_refused_or_warned_of(cluster: PrivateCluster, database: str) -> None:
    for setting in settings_of(cluster):
        with set_on(cluster, setting, cluster.members):
            if setting.refused:
                run_serve(HALFMQ_DATABASE=database).names("database", setting.words)
            else:
                with BrokerProcess(database) as broker:
                    broker.await_log("database setting:", setting.words)


def test_a_pair_that_is_not_semi_synchronous_is_warned_of(cluster: PrivateCluster, database: str) -> None:
    if not cluster.kind.endswith("pair"):
        return
    source = cluster.primary
    setting = f"rpl_semi_sync_{'source' if cluster.kind == 'mysql-pair' else 'master'}_enabled"
    run_on(cluster, source, f"SET GLOBAL {setting} = OFF")
    try:
        with BrokerProcess(database) as broker:
            broker.await_log("database setting:", "replication between them is asynchronous")
    finally:
        run_on(cluster, source, f"SET GLOBAL {setting} = ON")


def test_a_group_with_several_primaries_is_refused(cluster: PrivateCluster, database: str) -> None:
    if cluster.kind != "mysql-cluster":
        return
    primary = cluster.primary
    run_on(cluster, primary, "SELECT group_replication_switch_to_multi_primary_mode()")
    try:
        run_serve(HALFMQ_DATABASE=database).names("database", "the group has several primaries")
    finally:
        run_on(cluster, primary, "SELECT group_replication_switch_to_single_primary_mode(@@server_uuid)")


def test_a_setting_of_another_server_is_warned_of_and_told_when_that_is_the_primary(
    cluster: PrivateCluster, database: str
) -> None:
    setting = settings_of(cluster)[0]
    with BrokerProcess(database):
        # On Galera brokers choose the writer.
        other = other_member(cluster, database)
    address = cluster.url_of(other).rpartition("@")[2].partition("/")[0]
    with set_on(cluster, setting, [other]), BrokerProcess(database) as broker:
        broker.await_log("database setting:", f"{address}, if it becomes the primary:", setting.words)
        done = run("doctor", "--only", "settings", variables={"HALFMQ_DATABASE": database})
        assert f"{address}, if it becomes the primary: {setting.words}" in done.stdout
        if cluster.kind == "mysql-cluster":
            cluster.promote(other)
        elif cluster.kind == "mariadb-cluster":
            move_writer(cluster, other)
        else:
            return
        broker.await_log("[error", f"the primary {address} would be refused at a start: {setting.words}")


def test_settings_behind_one_address_are_looked_at_when_it_accepts_writes_again(
    cluster: PrivateCluster, database: str
) -> None:
    if not cluster.kind.endswith("pair"):
        return
    setting = settings_of(cluster)[0]
    own = primary_of(cluster, database)
    url = cluster.url_of(own)
    address = url.rpartition("@")[2].partition("/")[0]
    with BrokerProcess(url) as broker:
        cluster.promote(other_member(cluster, database))
        broker.await_log("accepts no writes")
        with set_on(cluster, setting, [own]):
            cluster.promote(own)
            broker.await_log(f"the primary {address}: {setting.words}")


def test_a_user_who_may_not_see_the_group_is_refused(cluster: PrivateCluster, database: str) -> None:
    if cluster.kind != "mysql-cluster":
        return
    run_on(
        cluster,
        cluster.primary,
        "CREATE USER shop IDENTIFIED BY 'shop'",
        "GRANT ALL ON halfmq_cluster.* TO shop",
    )
    theirs = database.replace("halfmq:halfmq@", "shop:shop@")
    run_serve(HALFMQ_DATABASE=theirs).names("database", "GRANT SELECT ON performance_schema.replication_group_members")
    run_on(
        cluster,
        cluster.primary,
        "GRANT SELECT ON performance_schema.replication_group_members TO shop",
        "GRANT SELECT ON performance_schema.replication_group_member_stats TO shop",
    )
    with BrokerProcess(theirs) as broker:
        broker.await_log("serves on")


# Galera: one writer among nodes that all accept writes

SENDS = 60


def test_a_commit_that_the_cluster_refuses_is_repeated(cluster: PrivateCluster, database: str) -> None:
    """Another node changes the same rows all the time: COMMITs of the broker end with 1213, and none of them fails."""
    if cluster.kind != "mariadb-cluster":
        return
    with BrokerProcess(database) as broker, Client(broker.endpoint) as client:
        topic = client.make_topic()
        node, ended = other_member(cluster, database), threading.Event()

        def change() -> None:
            with connect(cluster.url_of(node), autocommit=True) as own, own.cursor() as cursor:
                while not ended.is_set():
                    with suppress(pymysql.err.OperationalError):  # the broker was faster
                        cursor.execute("UPDATE halfmq_cluster.cluster_writer SET uses = uses + 1 WHERE slot > 0")

        refused = refusals(cluster, primary_of(cluster, database))
        thread = threading.Thread(target=change)
        thread.start()
        try:
            for number in range(SENDS):
                client.send(message(topic, str(number)))
        finally:
            ended.set()
            thread.join()
        found = sorted(int(each.body) for entries in client.log(topic).values() for each in entries)
        assert found == list(range(SENDS))
        assert refusals(cluster, primary_of(cluster, database)) > refused, "nothing was refused"
        assert broker.count("[error") == 0, broker.log


def refusals(cluster: PrivateCluster, node: int) -> int:
    """Transactions of a node that the cluster refused, or that it rolled back for another node's."""
    with connect(cluster.url_of(node)) as own, own.cursor() as cursor:
        cursor.execute(
            "SHOW GLOBAL STATUS WHERE variable_name IN ('wsrep_local_cert_failures', 'wsrep_local_bf_aborts')"
        )
        return sum(int(value) for _, value in cursor.fetchall())


def test_a_broker_whose_node_is_the_writer_no_more_writes_nothing_there(cluster: PrivateCluster, database: str) -> None:
    """Another broker moved the writer, such as while this one stood still: its connections are still open."""
    if cluster.kind != "mariadb-cluster":
        return
    with BrokerProcess(database) as broker, Client(broker.endpoint) as client:
        topic = client.make_topic()
        client.send(message(topic, "before"))
        former, node = primary_of(cluster, database), other_member(cluster, database)
        os.kill(broker.process.pid, signal.SIGSTOP)
        run_on(
            cluster,
            node,
            "UPDATE halfmq_cluster.cluster_writer SET node = (SELECT variable_value FROM"
            " information_schema.global_status WHERE variable_name = 'wsrep_gcomm_uuid')",
        )
        written = commits(cluster, former)
        os.kill(broker.process.pid, signal.SIGCONT)
        client.send(message(topic, "after"))
        assert primary_of(cluster, database) == node
        assert commits(cluster, former) == written
        assert sorted(each.body for entries in client.log(topic).values() for each in entries) == [b"after", b"before"]


def test_a_transaction_from_before_two_moves_of_the_writer_is_not_committed(
    cluster: PrivateCluster, database: str
) -> None:
    """Its node is the writer again, and meanwhile its locks held nobody: others wrote to another node."""
    if cluster.kind != "mariadb-cluster":
        return
    with closing(Database(database)) as own:
        migrate(own)
        session = own.session()
        address = session.connection.dbapi_connection.halfmq_address
        former = next(m for m in cluster.members if str(address) in cluster.url_of(m))
        session.begin()
        session.run("INSERT INTO producer_group (name) VALUES ('of an old transaction')")
        for member in (former % len(cluster.members) + 1, former):
            move_writer(cluster, member)
        with pytest.raises(pymysql.err.OperationalError, match="brokers write to another node"):
            session.commit()
        own.discard(session)


def move_writer(cluster: PrivateCluster, member: int) -> None:
    """Makes a node the writer, as brokers do."""
    with closing(connect(cluster.url_of(member))) as own:
        table = "halfmq_cluster.cluster_writer"
        wait_for_others(own)
        role = role_in_cluster(own, table)
        own.rollback()
        assert take_over(own, table, role.writer, role.node)


def commits(cluster: PrivateCluster, node: int) -> int:
    """Transactions that a node gave to the cluster."""
    with connect(cluster.url_of(node)) as own, own.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'wsrep_local_commits'")
        return int(cursor.fetchall()[0][1])
