"""docs/grpcurl.md, run line by line against a real broker: every command works, and prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from acceptance.pages import blocks_of, facts, need_grpcurl, run_blocks
from halfmq.v1 import admin_pb2, consumer_pb2, producer_pb2, transaction_pb2
from support.brokers import BrokerProcess

PAGE = Path(__file__).parents[2] / "docs" / "grpcurl.md"
TIMES = {"first_check": 1, "check_interval": 1, "max_checks": 2}
BLOCKS = blocks_of(PAGE)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """Exit status and output of every block, run in one shell, in order."""
    need_grpcurl()
    folder = tmp_path_factory.mktemp("page")
    with BrokerProcess(f"sqlite:///{folder / 'try.db'}", **TIMES) as broker:
        return run_blocks(BLOCKS, broker.endpoint, folder)


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=lambda number: f"line-{BLOCKS[number].line}")
def test_the_page_shows_what_it_prints(outputs: list[tuple[int, str]], number: int) -> None:
    block = BLOCKS[number]
    status, printed = outputs[number]
    assert status == block.exit, printed
    assert facts(printed) == facts(block.shown)


def test_the_page_starts_a_broker_with_the_times_it_is_tested_with() -> None:
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in TIMES.items())
    assert options in PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_task() -> None:
    commands = "".join(block.command for block in BLOCKS)
    used = re.findall(r"^.*grpcurl .*\$BROKER halfmq\.v1\.(\w+/\w+)", commands, re.M)
    offered = {
        f"{service.name}/{method.name}"
        for file in (admin_pb2, consumer_pb2, producer_pb2, transaction_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert len(offered) > 20
    assert set(used) == offered
