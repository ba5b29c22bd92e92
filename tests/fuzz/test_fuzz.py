"""Requests with any values to every RPC, of halfmq's protocol and RocketMQ's: none meets a fault of the broker.

HALFMQ_FUZZ_REQUESTS is the number of requests, over all databases; HALFMQ_FUZZ_SEED decides what is in them.
`scripts/fuzz --requests N --seed S` sets both.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

import pytest

from fuzz import campaign
from producer_sdk import Admin, Producer
from support.brokers import BrokerProcess
from support.databases import ALL_KINDS, AnyKind, create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest_plugins = ["support.rocketmq_fixtures"]

REQUESTS = int(os.environ.get("HALFMQ_FUZZ_REQUESTS") or 15_000)
SEED = int(os.environ.get("HALFMQ_FUZZ_SEED") or random.randrange(1 << 30))
SHARE = -(-REQUESTS // len(ALL_KINDS))
LOG_LINES = 10
"""Most lines of the log a minute, for requests that are refused as well."""


@pytest.fixture(params=ALL_KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    kind: AnyKind = request.param
    database = f"sqlite:///{tmp_path / 'halfmq.db'}" if kind == "sqlite" else create_database(server_url(kind))
    with BrokerProcess(database, rocketmq=True) as broker:
        yield broker
    if kind != "sqlite":
        drop_database(database)


@pytest.mark.timeout(600 + SHARE // 20)
def test_no_request_meets_a_fault_of_the_broker(target: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    found = asyncio.run(campaign.run(target.endpoint, SHARE, SEED))
    with capsys.disabled():
        print(f"\nseed {SEED}\n{found.table()}\nlines of the log: {len(target.lines)}")
    assert found.requests == SHARE
    assert found.faults == []
    assert target.process.poll() is None
    assert target.count("[error") == target.count("incident") == target.count("Traceback") == 0, target.log
    assert len(target.lines) <= LOG_LINES * (1 + found.seconds / 60), target.log
    with Admin(target.endpoint) as admin, Producer(target.endpoint) as producer:
        admin.create_topic("after-all")
        producer.send("after-all", "and it works")
