"""A broker that knows one address, behind which HAProxy follows the source of a pair: as docs/clusters.md shows it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Self

import pytest
from pymysql.err import OperationalError

from faults.client import Client
from faults.one_address import await_server, send, server_of
from support.brokers import BrokerProcess
from support.clusters import PrivateCluster
from support.databases import connect, in_ci
from support.listings import CHECKOUT, listings_of

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

PAGE = CHECKOUT / "docs" / "clusters.md"
BEFORE, AFTER = 20, 20
SERVERS = 2


class Proxy:
    """HAProxy with the configuration of the page, in front of a pair."""

    def __init__(self, cluster: PrivateCluster, folder: Path) -> None:
        program = shutil.which("haproxy")
        if not program:
            (pytest.fail if in_ci() else pytest.skip)("haproxy is missing")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        configuration, check = (
            next(each.text for each in listings_of(PAGE) if each.first == first) for first in ("global", "#!/bin/sh")
        )
        command = folder / "is-primary"
        command.write_text(check)
        command.chmod(0o755)
        configuration = configuration.replace("127.0.0.1:3306", f"127.0.0.1:{self.port}")
        configuration = configuration.replace("/etc/haproxy/is-primary", str(command))
        for member in cluster.members:
            address = cluster.url_of(member).rpartition("@")[2].partition("/")[0]
            configuration = configuration.replace(f"db{member}:3306", address)
        (folder / "haproxy.cfg").write_text(configuration)
        self._started = [str(program), "-db", "-f", str(folder / "haproxy.cfg")]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._started, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(10)


def test_a_failover_behind_one_address_loses_nothing(tmp_path: Path) -> None:
    with PrivateCluster("mariadb-pair", tmp_path) as cluster, Proxy(cluster, tmp_path) as proxy:
        with connect(cluster.url_of(1), autocommit=True) as own, own.cursor() as cursor:
            cursor.execute("CREATE USER 'check'@'%'")
            cursor.execute("CREATE DATABASE halfmq_proxy")
        database = f"mysql://halfmq:halfmq@127.0.0.1:{proxy.port}/halfmq_proxy"
        await_first_checks(database, 1)
        with BrokerProcess(database) as broker, Client(broker.endpoint) as client:
            topic = client.make_topic()
            sent = [send(client, topic) for _ in range(BEFORE)]
            assert server_of(database) == 1
            cluster.promote(2)
            sent += [send(client, topic) for _ in range(AFTER)]
            # For a second both count as up; then sessions of the former source are closed.
            await_server(database, 2)
            found = [each.body for entries in client.log(topic).values() for each in entries]
            assert sorted(found) == sorted(sent)
            assert broker.count("[error") == 0, broker.log


def await_first_checks(database: str, number: int) -> None:
    """Waits until the proxy has looked at the servers: before that it takes both for up, and leads to each in turn."""
    until, here = time.monotonic() + 60, 0
    while here < 3 * SERVERS:
        assert time.monotonic() < until, f"the proxy does not lead to server {number} alone"
        try:
            here = here + 1 if server_of(database) == number else 0
        except OperationalError:
            here = 0
        time.sleep(0.1)
