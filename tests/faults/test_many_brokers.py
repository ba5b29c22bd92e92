"""Eight brokers and 64 clients on one database, while brokers are restarted in turns, killed and frozen.

Half of the load is on one topic, and one client in four knows one broker only. Nothing acknowledged is lost, nothing
appears that was not sent, message groups keep their order, nobody is asked too often, a message has one live lease, and
in the end all is consumed; every broker does a part of the work.

HALFMQ_MANY_SECONDS is how long brokers come and go (8, on one of the servers; the full campaign is 3600, on private
servers of its own: HALFMQ_MANY_SECONDS=3600 HALFMQ_FAULT_ALL=1), HALFMQ_MANY_RATE the calls a second of each producer
(1), HALFMQ_FAULT_SEED the seed. HALFMQ_FAULT_FIGURES names a file for a line of JSON with the figures.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from faults.many.campaign import BROKERS, Campaign
from faults.many.troubles import FROZEN
from support.databases import create_database
from support.private_servers import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.databases import Kind

SECONDS = float(os.environ.get("HALFMQ_MANY_SECONDS") or 0)
SHORT, SHORT_FREEZE = 8.0, 3.0
RATE = float(os.environ.get("HALFMQ_MANY_RATE") or 1)
SEED = int(os.environ.get("HALFMQ_FAULT_SEED") or random.randrange(1 << 30))
LEAST_SHARE = 1.0
"""Percent of all calls, and of all deliveries, that each broker has at least: an eighth is 12.5."""

pytestmark = pytest.mark.timeout(600 + 2 * SECONDS)


@pytest.fixture
def database(kind: Kind, fresh_database: Callable[[Kind], str], tmp_path: Path) -> Iterator[str]:
    """An empty one; of a long campaign on a server that nobody else uses."""
    if not SECONDS:
        yield fresh_database(kind)
        return
    with PrivateServer(kind, tmp_path) as server:
        yield create_database(server.url)


def test_nothing_is_lost_and_work_spreads_while_brokers_come_and_go(kind: Kind, database: str) -> None:
    campaign = Campaign(kind, database, SEED, RATE)
    campaign.run(SECONDS or SHORT, FROZEN[1] if SECONDS else SHORT_FREEZE)
    assert campaign.wrong == [], f"seed {SEED}"
    assert campaign.history.acknowledged, "no commit was acknowledged"
    assert campaign.history.checked, "no commit came from a check"
    for what in ("calls", "deliveries"):
        shares = campaign.shares[what]
        assert len(shares) == BROKERS
        assert min(shares) >= LEAST_SHARE, f"seed {SEED}: {what} of each broker, in percent: {shares}"
