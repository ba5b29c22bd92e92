"""A day of two brokers in an hour: what is kept for hours expires many times, and nothing grows for it.

Transactions with every end, sends, batches, delayed messages, message groups, consumers that refuse and die, dead
letters, seeks, sinks; and topics, groups, producers, members and sinks with new names all the time. Nothing that was
acknowledged is lost before its retention, nothing is delivered wrongly, nothing is kept after its time; memory, tables,
undo and history list stay as they are, and in the end there is nothing left of what was deleted or has expired.

HALFMQ_LONG_SECONDS is how long the day is (10, on one of the servers; the full campaign is 3600, on private servers of
its own: HALFMQ_LONG_SECONDS=3600 HALFMQ_FAULT_ALL=1), HALFMQ_LONG_RATE the calls a second of each producer (4),
HALFMQ_FAULT_SEED the seed. HALFMQ_FAULT_FIGURES names a file for a line of JSON with the figures.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from faults.long.campaign import Campaign
from faults.long.day import Day
from support.databases import create_database
from support.memory import MIB
from support.private_servers import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.databases import Kind

SECONDS = float(os.environ.get("HALFMQ_LONG_SECONDS") or 0)
SHORT = 10.0
RATE = float(os.environ.get("HALFMQ_LONG_RATE") or 4)
SEED = int(os.environ.get("HALFMQ_FAULT_SEED") or random.randrange(1 << 30))
LONG = 1800.0
"""Seconds from which on a slope tells of a leak."""
MOST_GROWTH, MOST_MEMORY = 1.0, 300.0
"""MiB a minute of a broker after its warm-up in a long campaign; MiB of a broker in any."""
MOST_LATE = 0.001
"""Of all transactions: those that could not be judged, as they expired before they were looked at."""
MORE = 1.15
"""By how much the last third may be above the first one, after the warm-up; and a little that is nothing."""
LITTLE = {"rows": 1000.0, "tables": 16.0, "undo": 16.0}
LONGEST_HISTORY = 20_000
EXPLAINED = {"halfmq_version": 1, "maintenance_turn": 4, "broker": 2, "producer_group": 10_000}
"""Rows of an installation in which nothing is, at most: one for each broker that runs, and for each thing that they do
in turns. Producer groups stay, and there is a limit to their number."""

pytestmark = pytest.mark.timeout(600 + 2 * SECONDS)


@pytest.fixture
def database(kind: Kind, fresh_database: Callable[[Kind], str], tmp_path: Path) -> Iterator[str]:
    """An empty one; of a long campaign on a server that nobody else uses."""
    if not SECONDS:
        yield fresh_database(kind)
        return
    with PrivateServer(kind, tmp_path) as server:
        yield create_database(server.url)


def test_a_day_leaves_nothing_behind(kind: Kind, database: str) -> None:
    campaign = Campaign(kind, database, SEED, RATE, Day(SECONDS or SHORT))
    campaign.run()
    assert campaign.wrong == [], f"seed {SEED}"
    assert campaign.history.acknowledged, "no commit was acknowledged"
    assert campaign.history.checked, "no commit came from a check"
    done = campaign.done
    assert min(done[what] for what in ("visits", "members", "epochs", "moved", "rounds")), done
    unexplained = {name: count for name, count in campaign.left.items() if count > EXPLAINED.get(name, 0)}
    assert unexplained == {}, f"seed {SEED}"
    growth, warm = campaign.growth, campaign.warm
    assert max(max(each.memory) for each in growth.looks) / MIB < MOST_MEMORY
    if SECONDS < LONG:
        return
    assert campaign.late < MOST_LATE * len(campaign.history.bodies), campaign.late
    assert max(growth.slopes(warm)) <= MOST_GROWTH, growth.slopes(warm)
    for what, figure in (
        ("rows", lambda each: sum(each.rows.values())),
        ("tables", lambda each: sum(each.sizes.values()) / MIB),
        ("undo", lambda each: each.undo / MIB),
    ):
        thirds = growth.thirds(warm, figure)
        assert thirds.last <= MORE * thirds.first + LITTLE[what], f"{what}: {thirds}"
    assert growth.thirds(warm, lambda each: each.history).last < LONGEST_HISTORY
