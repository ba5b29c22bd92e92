"""docs/lock.md, run line by line: it ends with a broker that knows its clients, and prints what it shows."""

from __future__ import annotations

import getpass
import re
import socket
from pathlib import Path

import pytest

from acceptance.pages import blocks_of, facts, need_grpcurl, run_blocks

BLOCKS = blocks_of(Path(__file__).parents[2] / "docs" / "lock.md")


def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    need_grpcurl()
    folder = tmp_path_factory.mktemp("page")
    done = run_blocks(BLOCKS, folder, PORT=str(unused_port()), HALFMQ_DATABASE=f"sqlite:///{folder / 'shop.db'}")
    assert {file.stat().st_mode & 0o077 for file in folder.glob("*.token")} == {0}
    return done


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=lambda number: f"line-{BLOCKS[number].line}")
def test_the_page_shows_what_it_prints(outputs: list[tuple[int, str]], number: int) -> None:
    block = BLOCKS[number]
    status, printed = outputs[number]
    assert status == block.exit, printed
    printed = printed.replace(f"os:{getpass.getuser()}", "os:USER")
    assert facts(re.sub(r" +\n", "\n", printed)) == facts(block.shown)
