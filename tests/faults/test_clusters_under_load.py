"""Members of database clusters are killed, frozen and cut off under load: nothing acknowledged is lost.

HALFMQ_CLUSTER_CYCLES is the number of cycles, over all kinds of clusters (3, on those with three members; the full
campaign is 200), HALFMQ_FAULT_SEED is the seed of the first one. HALFMQ_FAULT_FIGURES names a file for a line of JSON
of each cycle.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from faults.clusters.cycle import run_cycle
from faults.load import CHECKS
from support.brokers import BrokerProcess
from support.clusters import CLUSTER_KINDS, ClusterKind, PrivateCluster
from support.databases import connect

if TYPE_CHECKING:
    from pathlib import Path

CYCLES = int(os.environ.get("HALFMQ_CLUSTER_CYCLES") or 0)
SEED = int(os.environ.get("HALFMQ_FAULT_SEED") or random.randrange(1 << 30))
SHARE = -(-CYCLES // len(CLUSTER_KINDS))
# Little, so that clients see what happens.
BROKER = {**CHECKS, "reconnect_timeout": 2, "answer_timeout": 8}
# In a short run: the trouble that each engine is there for, and one that takes its quorum.
SHORT: dict[ClusterKind, list[int]] = {"mysql-cluster": [0], "mariadb-cluster": [1, 11]}


@pytest.mark.parametrize("kind", CLUSTER_KINDS if CYCLES else SHORT)
@pytest.mark.timeout(600 + 240 * SHARE)
def test_nothing_acknowledged_is_lost(kind: ClusterKind, tmp_path: Path) -> None:
    wrong: dict[int, list[str]] = {}
    with PrivateCluster(kind, tmp_path) as cluster:
        database = f"{cluster.url.rpartition('/')[0]}/halfmq_cluster"
        with connect(cluster.url_of(cluster.primary), autocommit=True) as own, own.cursor() as cursor:
            cursor.execute("CREATE DATABASE halfmq_cluster")
        with BrokerProcess(database, **BROKER) as one, BrokerProcess(database, **BROKER) as two:
            for seed in range(SEED, SEED + SHARE) if CYCLES else SHORT[kind]:
                found = run_cycle(cluster, database, [one, two], seed)
                if found:
                    wrong[seed] = found
    assert wrong == {}
