"""A broker that knows one address, behind which MySQL Router follows a primary: as docs/clusters.md shows it."""

from __future__ import annotations

import os
import random
import shlex
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from faults.client import Client
from faults.one_address import await_server, send, server_of
from support.brokers import BrokerProcess
from support.clusters import PrivateCluster
from support.databases import connect
from support.listings import CHECKOUT, listings_of
from support.private_servers import run_db

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

PAGE = CHECKOUT / "docs" / "clusters.md"
BEFORE, AFTER = 20, 20
PORTS = 4
"""That Router takes: for reads and writes or only reads, in both of MySQL's protocols."""
METADATA = """
    CREATE DATABASE mysql_innodb_cluster_metadata;
    USE mysql_innodb_cluster_metadata;
    CREATE TABLE schema_version (major INT PRIMARY KEY, minor INT, patch INT);
    INSERT INTO schema_version VALUES (2, 0, 0);
    CREATE TABLE v2_gr_clusters (
        cluster_id CHAR(36) PRIMARY KEY, cluster_name TEXT, group_name TEXT, router_options JSON);
    INSERT INTO v2_gr_clusters VALUES ('halfmq', 'halfmq', @@group_replication_group_name, NULL);
    CREATE TABLE v2_this_instance (
        cluster_id CHAR(36) PRIMARY KEY, instance_id INT, cluster_name TEXT, cluster_type TEXT);
    INSERT INTO v2_this_instance VALUES ('halfmq', 1, 'halfmq', 'gr');
    CREATE TABLE v2_instances (
        instance_id INT PRIMARY KEY AUTO_INCREMENT, cluster_id CHAR(36), mysql_server_uuid CHAR(36), address TEXT,
        endpoint TEXT, xendpoint TEXT, attributes JSON, label TEXT);
    INSERT INTO v2_instances (cluster_id, mysql_server_uuid, address, endpoint, attributes)
        SELECT 'halfmq', MEMBER_ID, CONCAT(MEMBER_HOST, ':', MEMBER_PORT), CONCAT(MEMBER_HOST, ':', MEMBER_PORT), '{}'
        FROM performance_schema.replication_group_members;
    CREATE TABLE routers (
        router_id INT PRIMARY KEY AUTO_INCREMENT, cluster_id CHAR(36), router_name TEXT, product_name TEXT,
        version TEXT, last_check_in TIMESTAMP, address TEXT, options JSON, attributes JSON);
    CREATE VIEW v2_routers AS SELECT * FROM routers;
"""
"""What Router asks of the metadata of a cluster that MySQL Shell has made."""


class Router:
    """MySQL Router as the command of the page sets it up, in front of a group."""

    def __init__(self, cluster: PrivateCluster, folder: Path) -> None:
        self._environment = {**os.environ, "HALFMQ_DB_DIR": str(folder)}
        self._run("--version", started=False)
        primary = cluster.url_of(cluster.primary)
        with connect(primary, autocommit=True) as own, own.cursor() as cursor:
            for statement in METADATA.split(";\n")[:-1]:
                cursor.execute(statement)
        (command,) = (each.text for each in listings_of(PAGE) if each.first.startswith("mysqlrouter "))
        command = command.replace("root@db1:3306", primary.partition("//")[2].partition("/")[0])
        command = command.replace("/etc/mysqlrouter", str(folder / "router"))
        command = command.replace("--user=mysqlrouter", "--user=root")
        self.port = free_ports(PORTS)
        self._run(
            *shlex.split(command)[1:],
            f"--conf-base-port={self.port}",
            "--conf-bind-address=127.0.0.1",
            "--report-host=localhost",
            "--disable-rw-split",
            "--disable-rest",
        )
        self._configuration = folder / "router" / "mysqlrouter.conf"

    def _run(self, *arguments: str, started: bool = True) -> None:
        run_db("run", "mysql", "mysqlrouter", *arguments, environment=self._environment, started=started)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [CHECKOUT / "scripts" / "db", "run", "mysql", "mysqlrouter", f"--config={self._configuration}"],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(30)


def free_ports(number: int) -> int:
    """The first of some ports in a row that nobody uses; they are below those that connections are given."""
    while True:
        first = random.randrange(20_000, 32_000)
        with ExitStack() as taken:
            try:
                for port in range(first, first + number):
                    taken.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first


def test_failovers_behind_one_address_lose_nothing(tmp_path: Path) -> None:
    with PrivateCluster("mysql-cluster", tmp_path) as cluster, Router(cluster, tmp_path) as router:
        with connect(cluster.url_of(cluster.primary), autocommit=True) as own, own.cursor() as cursor:
            cursor.execute("CREATE DATABASE halfmq_proxy")
        database = f"mysql://halfmq:halfmq@127.0.0.1:{router.port}/halfmq_proxy"
        await_server(database, cluster.primary)
        with BrokerProcess(database) as broker, Client(broker.endpoint) as client:
            topic = client.make_topic()
            sent = [send(client, topic) for _ in range(BEFORE)]
            for harm, mend in ((cluster.kill, cluster.restart), (cluster.freeze, cluster.thaw)):
                former = cluster.primary
                sent += sent_while(client, topic, harm, former)
                primary = cluster.primary_beside(former)
                await_server(database, primary)
                sent += sent_while(client, topic, mend, former)
                cluster.start()
                assert server_of(database) == primary
            found = [each.body for entries in client.log(topic).values() for each in entries]
            assert sorted(found) == sorted(sent)
            assert broker.count("[error") == 0, broker.log


def sent_while(client: Client, topic: str, harm: Callable[[int], None], member: int) -> list[bytes]:
    """Sends while something is done to a member, and some messages after that; their bodies."""
    with ThreadPoolExecutor(1) as beside:
        done = beside.submit(harm, member)
        sent = []
        while not done.done():
            sent.append(send(client, topic))
        done.result()
    return sent + [send(client, topic) for _ in range(AFTER)]
