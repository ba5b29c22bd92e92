"""docs/grpcurl.md, run line by line against a real broker: every command works, and prints what the page shows."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from acceptance.pages import blocks_of, facts, need_grpcurl, run_blocks
from support.brokers import BrokerProcess

CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs" / "grpcurl.md"
PROTOS = CHECKOUT / "proto" / "halfmq" / "v1"
TIMES = {"first_check": 1, "check_interval": 1, "max_checks": 2}
BLOCKS = blocks_of(PAGE)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """Exit status and output of every block, run in one shell, in order."""
    need_grpcurl()
    folder = tmp_path_factory.mktemp("page")
    with BrokerProcess(f"sqlite:///{folder / 'try.db'}", **TIMES) as broker:
        return run_blocks(BLOCKS, folder, BROKER=broker.endpoint)


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=lambda number: f"line-{BLOCKS[number].line}")
def test_the_page_shows_what_it_prints(outputs: list[tuple[int, str]], number: int) -> None:
    block = BLOCKS[number]
    status, printed = outputs[number]
    assert status == block.exit, printed
    assert facts(printed) == facts(block.shown)


def test_the_page_starts_a_broker_with_the_times_it_is_tested_with() -> None:
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in TIMES.items())
    assert options in PAGE.read_text(encoding="utf-8")


def calls_in(commands: str) -> set[str]:
    """The calls of halfmq that some commands make, as Service/Method."""
    return set(re.findall(r"\$BROKER halfmq\.v1\.(\w+/\w+)", commands))


def test_the_page_has_every_call_of_every_service() -> None:
    used = calls_in("".join(block.command for block in BLOCKS))
    # The files themselves are looked for, so that a new one is not forgotten here.
    files = [import_module(f"halfmq.v1.{path.stem}_pb2").DESCRIPTOR for path in PROTOS.glob("*.proto")]
    services = [service for file in files for service in file.services_by_name.values()]
    assert {service.name for service in services} >= {"TransactionService", "QueryService"}
    assert used == {f"{service.name}/{method.name}" for service in services for method in service.methods}


def test_the_page_has_every_field_of_what_operators_ask() -> None:
    lines = "".join(block.command for block in BLOCKS).splitlines()
    services = [
        import_module(f"halfmq.v1.{name}_pb2").DESCRIPTOR.services_by_name[service]
        for name, service in (("admin", "AdminService"), ("query", "QueryService"))
    ]
    used: dict[str, set[str]] = {}
    for service in services:
        for method in service.methods:
            call = f"{service.name}/{method.name}"
            asked = [line for line in lines if call in line]
            used[call] = {name for line in asked for name in re.findall(r'"(\w+)":', line)}
            # Pages are shown once. A broker's id is not known before.
            missing = {field.name for field in method.input_type.fields} - used[call] - {"page_token", "broker_id"}
            assert missing == set(), call
    assert "page_token" in used["AdminService/ListTopics"]


def test_the_contents_name_every_task_and_its_calls() -> None:
    text = PAGE.read_text(encoding="utf-8")
    contents, _, body = text.partition("\n## Contents\n")[2].partition("\n## ")
    body = f"\n## {body}"
    rows = re.findall(r"^\| \**\[(.+?)\]\(#(.+?)\)\** \|(.*)\|$", contents, re.M)
    parts = re.split(r"^##+ (.+)\n", body, flags=re.M)[1:]
    tasks = dict(zip(parts[::2], parts[1::2], strict=True))
    assert [heading for heading, _, _ in rows] == list(tasks)
    listed = set()
    for heading, anchor, calls in rows:
        assert anchor == re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        made = {call.partition("/")[2] for call in calls_in(tasks[heading])} | {"Health/Check", "list", "describe"}
        named = set(re.findall(r"`([\w/]+)`", calls))
        assert named <= made, heading
        listed |= named
    assert listed >= {call.partition("/")[2] for call in calls_in(body)}
