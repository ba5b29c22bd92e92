"""docs/how-to: every script runs and prints what its page shows, and then the page's commands do.

The scripts run on every database, the commands on servers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acceptance.pages import blocks_of, facts, need_grpcurl, run_blocks
from support.databases import KINDS
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.databases import AnyKind
    from support.shared_brokers import Brokers

CHECKOUT = Path(__file__).parents[2]
SCRIPTS = sorted((CHECKOUT / "examples" / "how_to").glob("*.py"))
FOLDER = CHECKOUT / "docs" / "how-to"
# Fewer than the script has under way at a time, so that brokers refuse some.
OVERLOADED = {"max_calls": 20}
GATEWAY = "official_rocketmq_clients"

_EXAMPLE = re.compile(r"^```python\n(?P<code>.*?)^```\n\nIt prints:\n\n```text\n(?P<printed>.*?)^```\n", re.S | re.M)

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


def page_of(script: Path) -> Path:
    return FOLDER / f"{script.stem.replace('_', '-')}.md"


def example_on(page: Path) -> re.Match[str]:
    (found,) = _EXAMPLE.finditer(page.read_text(encoding="utf-8"))
    return found


def run(script: Path, endpoint: str, folder: Path) -> str:
    # RocketMQ's client writes its log into the user's home.
    environment = {**os.environ, "HALFMQ_ENDPOINT": endpoint, "HOME": str(folder)}
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def endpoint(script: Path, kind: AnyKind, brokers: Brokers, new_broker: Callable[..., BrokerProcess]) -> str:
    """Where the script is to go: to the broker that tests share, or to some that have little room."""
    if script.stem == GATEWAY:
        return new_broker(brokers.database(kind), rocketmq=True).endpoint
    if script.stem != "many_brokers_and_overload":
        return brokers.shared(kind).endpoint
    database = brokers.database(kind)
    count = 1 if kind == "sqlite" else 2
    return ",".join(new_broker(database, **OVERLOADED).endpoint for _ in range(count))


def test_every_script_has_its_page_in_the_list() -> None:
    pages = {path.name for path in FOLDER.glob("*.md")} - {"README.md"}
    assert {page_of(script).name for script in SCRIPTS} == pages
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))) == pages


@every_script
def test_the_page_shows_the_script_as_it_is(script: Path) -> None:
    page = page_of(script)
    assert example_on(page)["code"] == script.read_text(encoding="utf-8")
    assert f"(../../examples/how_to/{script.name})" in page.read_text(encoding="utf-8")


# These take long to start, and have tests of their own.
SLOW = [script for script in SCRIPTS if script.stem.startswith(("spark", GATEWAY))]
PLACES = [(script, kind) for script in SCRIPTS for kind in (("mariadb",) if script in SLOW else KINDS)]


@pytest.mark.parametrize(("script", "kind"), PLACES, ids=lambda part: getattr(part, "stem", part))
def test_the_script_and_then_the_commands_print_what_the_page_shows(
    script: Path, endpoint: str, tmp_path: Path
) -> None:
    page = page_of(script)
    assert facts(run(script, endpoint, tmp_path)) == facts(example_on(page)["printed"])
    need_grpcurl()
    blocks = blocks_of(page)
    assert blocks
    for block, (status, printed) in zip(blocks, run_blocks(blocks, tmp_path, BROKER=endpoint), strict=True):
        assert (status, facts(printed)) == (block.exit, facts(block.shown)), f"{page}:{block.line}\n{printed}"


@pytest.mark.parametrize("script", [each for each in SCRIPTS if each not in SLOW], ids=lambda script: script.stem)
@pytest.mark.parametrize("kind", ["sqlite"])
def test_the_script_may_be_run_again(script: Path, endpoint: str, tmp_path: Path) -> None:
    first = run(script, endpoint, tmp_path)
    assert facts(first) == facts(example_on(page_of(script))["printed"])
    assert run(script, endpoint, tmp_path) == first
