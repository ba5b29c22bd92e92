"""docs/grpcurl.md, run line by line against a real broker: every command works, and prints what the page shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from halfmq.v1 import admin_pb2, consumer_pb2, producer_pb2, transaction_pb2
from support.brokers import BrokerProcess
from support.databases import in_ci

PAGE = Path(__file__).parents[2] / "docs" / "grpcurl.md"
TIMES = {"first_check": 1, "check_interval": 1, "max_checks": 2}

# A block of commands, and the block behind it that shows what they print; exit=N where that is not 0.
_BLOCK = re.compile(
    r"^```bash\n(?P<command>.*?)^```\n(?:\n```(?:json|text)(?: exit=(?P<exit>\d+))?\n(?P<shown>.*?)^```\n)?",
    re.S | re.M,
)
_VOLATILE = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<time>"),
    (re.compile(r'("receipt_handle": )"[0-9a-f.]+"'), r'\1"<handle>"'),
    (re.compile(r'("broker_id": )"[^"]+"'), r'\1"<broker>"'),
)


def _blocks() -> list[re.Match[str]]:
    return list(_BLOCK.finditer(PAGE.read_text(encoding="utf-8")))


def _facts(text: str) -> list[Any]:
    """What a text says, without what changes from run to run: JSON values where it is JSON, else its lines."""
    for pattern, stand_in in _VOLATILE:
        text = pattern.sub(stand_in, text)
    if not text.lstrip().startswith("{"):
        return [line.rstrip() for line in text.splitlines() if line.strip()]
    values, rest = [], text.lstrip()
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        values.append(value)
        rest = rest[end:].lstrip()
    return values


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """Exit status and output of every block, run in one shell, in order."""
    if shutil.which("grpcurl") is None:
        reason = (
            "needs grpcurl: scripts/test installs it, or go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.8.9"
        )
        if in_ci():
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("page")
    script = "".join(
        f"{{\n{block['command']}\n}} >{number}.out 2>&1\necho $? >{number}.exit\n"
        for number, block in enumerate(_blocks())
    )
    with BrokerProcess(f"sqlite:///{folder / 'try.db'}", **TIMES) as broker:
        subprocess.run(
            ["bash", "-o", "pipefail", "-c", script],
            env={**os.environ, "BROKER": broker.endpoint},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            check=True,
            timeout=120,
        )
    return [
        (int((folder / f"{number}.exit").read_text()), (folder / f"{number}.out").read_text())
        for number in range(len(_blocks()))
    ]


@pytest.mark.parametrize("number", range(len(_blocks())), ids=lambda number: f"line-{_line_of(number)}")
def test_the_page_shows_what_it_prints(outputs: list[tuple[int, str]], number: int) -> None:
    block = _blocks()[number]
    status, printed = outputs[number]
    assert status == int(block["exit"] or 0), printed
    assert _facts(printed) == _facts(block["shown"] or "")


def _line_of(number: int) -> int:
    return PAGE.read_text(encoding="utf-8").count("\n", 0, _blocks()[number].start()) + 1


def test_the_page_starts_a_broker_with_the_times_it_is_tested_with() -> None:
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in TIMES.items())
    assert options in PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_task() -> None:
    used = re.findall(r"^.*grpcurl .*\$BROKER halfmq\.v1\.(\w+/\w+)", _commands(), re.M)
    offered = {
        f"{service.name}/{method.name}"
        for file in (admin_pb2, consumer_pb2, producer_pb2, transaction_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert len(offered) > 20
    assert set(used) == offered


def _commands() -> str:
    return "".join(block["command"] for block in _blocks())
