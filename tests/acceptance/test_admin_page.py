"""docs/admin.md, run block by block against a small shop: every command works, and prints what the page shows."""

from __future__ import annotations

import re
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

from acceptance.pages import Block, blocks_of, facts, run_blocks
from consumer_sdk import ClientKind, Consumer
from halfmq_cli.commands import app
from producer_sdk import (
    Admin,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionProducer,
    TransactionState,
)
from support.admin_command import environment
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from client_core.message import HalfMessages

PAGE = Path(__file__).parents[2] / "docs" / "admin.md"
BLOCKS = blocks_of(PAGE)
TIMES = {"first_check": 1, "check_interval": 1, "max_checks": 2}
_VOLATILE = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<id>"),
    (re.compile(r"\b\d+(\.\d+)?(ms|us|s|m|h|d)(\d+[smh])?\b"), "<duration>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r"\b(tables \d{4}|\d+\.\d+\.\d+)\b(?!\.)"), "<version>"),
    (re.compile(r"\b\d+-\d{16}\b"), "<topic>"),
)


class Unsure(TransactionListener):
    """Cannot reach its database."""

    def execute_local_transaction(self, messages: HalfMessages, arg: object) -> LocalTransactionState:
        raise NotImplementedError

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        msg = "the database of the shop does not answer"
        raise TimeoutError(msg)


def wait(holds: Callable[[], Any]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)


def open_shop(endpoint: str, clients: ExitStack) -> None:
    """What the page says of the shop."""
    admin = clients.enter_context(Admin(endpoint))
    for topic, queues in (("orders", 2), ("letters", 1)):
        admin.create_topic(topic, queues=queues)
    admin.create_group("mail", max_attempts=1)
    admin.create_group("shipping")
    with TransactionProducer(endpoint, "shop", Unsure(), client_id="till-1") as shop:
        shop.prepare(
            Message("orders", '{"order": 7, "amount": 120}', tag="paid", keys=("order-7",), message_group="till-1")
        )
        wait(lambda: list(admin.list_transactions(state=TransactionState.PARKED)))
        for body in ("one", "two"):
            shop.send("letters", body, tag="birthday")
        for number in range(4):
            shop.send("orders", f'{{"order": {number}}}', tag="paid", keys=(f"order-{number}",), message_group="till-1")
    with TransactionProducer(endpoint, "web") as web:
        for number in range(3):
            web.prepare(Message("orders", f'{{"order": {number + 20}}}'))
    with Consumer(endpoint, "mail", "letters") as mail:
        for _ in range(2):
            next(mail).nack(reason="the address is unknown")
        wait(lambda: len(list(admin.list_dead_letters("mail"))) == 2)
    clients.enter_context(TransactionProducer(endpoint, "billing", Unsure(), client_id="billing-1"))
    # They are listed in the order in which they connected.
    wait(lambda: [each.kind for each in admin.list_clients(group="billing")] == [ClientKind.PRODUCER])
    press = clients.enter_context(Consumer(endpoint, "shipping", "orders", client_id="press-1"))
    next(press)
    wait(lambda: len(list(admin.list_clients())) == 2 and any(each.held for each in admin.list_clients()))
    wait(lambda: admin.list_brokers()[0].consumers == 1)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """Exit status and output of every block, run in one shell, in order."""
    folder = tmp_path_factory.mktemp("page")
    command = folder / "bin" / "halfmq"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom halfmq_cli import main\n\nmain()\n")
    command.chmod(0o755)
    with (
        BrokerProcess(f"sqlite:///{folder / 'try.db'}", broker_id="broker-1", **TIMES) as broker,
        ExitStack() as clients,
    ):
        open_shop(broker.endpoint, clients)
        variables = environment(
            {"HALFMQ_ENDPOINT": broker.endpoint, "USER": "anna", "LOGNAME": "anna", "HOME": str(folder)}
        )
        variables |= {
            "PATH": f"{command.parent}:{variables['PATH']}",
            "XDG_CONFIG_HOME": str(folder / "config"),
            "PID": str(broker.process.pid),
        }
        done = run_blocks(BLOCKS, folder, **variables)
        return [
            (
                status,
                text.replace(socket.gethostname(), "machine")
                .replace(str(folder), "~")
                .replace(f" {broker.process.pid} ", " 4711 "),
            )
            for status, text in done
        ]


def told(text: str) -> list[Any]:
    """What a text says, without what changes from run to run, and without the widths of columns."""
    for pattern, stand_in in _VOLATILE:
        text = pattern.sub(stand_in, text)
    return [" ".join(each.split()) if isinstance(each, str) else each for each in facts(text)]


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=lambda number: f"line-{BLOCKS[number].line}")
def test_the_page_shows_what_it_prints(outputs: list[tuple[int, str]], number: int) -> None:
    block: Block = BLOCKS[number]
    status, printed = outputs[number]
    assert status == block.exit, printed
    assert told(printed) == told(block.shown)


def test_the_page_tells_the_broker_it_is_tested_with() -> None:
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in TIMES.items())
    assert options in PAGE.read_text(encoding="utf-8")


def test_every_command_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    admin = get_command(app).commands["admin"]  # type: ignore[attr-defined]
    names = []
    for name in admin.commands:
        found = admin.commands[name]
        names += [f"{name} {verb}" for verb in found.commands] if hasattr(found, "commands") else [name]
    assert [name for name in names if f"halfmq admin {name}" not in page] == []
