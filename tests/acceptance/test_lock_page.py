"""docs/lock.md, run line by line: it ends with a broker that knows its clients, and prints what it shows."""

from __future__ import annotations

import getpass
import re
from pathlib import Path

import pytest

from acceptance.pages import blocks_of, facts, need_grpcurl, run_blocks, unused_port

BLOCKS = blocks_of(Path(__file__).parents[2] / "docs" / "lock.md")


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
