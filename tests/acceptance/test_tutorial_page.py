"""docs/tutorial.md, run block by block in an empty folder: it ends without a transaction in doubt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from acceptance.pages import blocks_of, facts, run_blocks, unused_port

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCKS = blocks_of(PAGE)
FILES = re.findall(r"^```python file=(\S+)\n(.*?)^```\n", PAGE.read_text(encoding="utf-8"), re.S | re.M)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """Exit status and output of every block; the files that the reader saves are there."""
    folder = tmp_path_factory.mktemp("page")
    for name, text in FILES:
        (folder / name).write_text(text, encoding="utf-8")
    return run_blocks(BLOCKS, folder, PORT=str(unused_port()), CONSOLE_PORT=str(unused_port()))


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=lambda number: f"line-{BLOCKS[number].line}")
def test_the_page_shows_what_it_prints(outputs: list[tuple[int, str]], number: int) -> None:
    block = BLOCKS[number]
    status, printed = outputs[number]
    assert status == block.exit, printed
    assert facts(printed) == facts(block.shown)


def test_every_file_is_used() -> None:
    commands = "".join(block.command for block in BLOCKS)
    assert FILES
    assert [name for name, _ in FILES if f"python {name}" not in commands] == []
