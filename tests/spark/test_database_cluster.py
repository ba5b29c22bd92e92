"""A query of Spark copies a topic while the primary of the database's cluster is killed: every row arrives once.

HALFMQ_CLUSTER_CYCLES, which is the number of cycles of another campaign, has it run on every kind of cluster with three
members.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from faults.clusters.cycle import primary_of
from producer_sdk import Admin, Message, Producer
from support.brokers import BrokerProcess
from support.clusters import PrivateCluster
from support.databases import connect
from support.spark import Driver, arrived, until

pytestmark = pytest.mark.in_turns("campaigns of Spark")

COPYING = (sys.executable, str(Path(__file__).with_name("copying_driver.py")))
CAMPAIGN = bool(os.environ.get("HALFMQ_CLUSTER_CYCLES"))
KINDS = ["mariadb-cluster", "mysql-cluster"] if CAMPAIGN else ["mariadb-cluster"]
MESSAGES = 2000 if CAMPAIGN else 1000


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_arrives_once_though_the_primary_is_killed(kind: str, tmp_path: Path) -> None:
    with PrivateCluster(kind, tmp_path / "cluster") as cluster:
        with connect(cluster.url_of(cluster.primary), autocommit=True) as own, own.cursor() as cursor:
            cursor.execute("CREATE DATABASE halfmq_spark")
        database = f"{cluster.url.rpartition('/')[0]}/halfmq_spark"
        with BrokerProcess(database, reconnect_timeout=30) as broker:
            with Admin(broker.endpoint) as admin, Producer(broker.endpoint) as producer:
                admin.create_topic("source")
                admin.create_topic("target")
                for start in range(0, MESSAGES, 500):
                    numbers = range(start, start + 500)
                    producer.send_many([Message("source", f"{number}".encode()) for number in numbers])
            driver = Driver(*COPYING, broker.endpoint, "source", "target", str(tmp_path / "checkpoint"))
            until(lambda: not driver.running() or arrived(broker.endpoint, "target").total() > 0)
            assert driver.running()
            cluster.kill(primary_of(cluster, database))
            driver.finish()
            assert arrived(broker.endpoint, "target") == Counter(dict.fromkeys(range(MESSAGES), 1))
            broker.await_log("the database's primary is")
            assert broker.count("[error") == 0, broker.log
