"""The README's examples, run as they stand against a real broker."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from acceptance.client import PREPARED, ROLLED_BACK, Client
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess

EXAMPLES = Path(__file__).parents[2] / "examples"


def _produce(endpoint: str, order: str, folder: Path, example: str = "producer.py") -> str:
    command = [sys.executable, str(EXAMPLES / example), endpoint, order]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_examples_work_together(new_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    endpoint = new_broker("sqlite", auto_create=True).endpoint
    assert _produce(endpoint, "three apples", tmp_path) == "COMMITTED"
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / "consumer.py"), endpoint],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as consumer:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "three apples\n"
        assert _produce(endpoint, "one pear", tmp_path) == "COMMITTED"
        assert consumer.stdout.readline() == "one pear\n"
        consumer.terminate()
        assert consumer.wait(30) == 0, "SIGTERM does not stop it in an orderly way"
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        assert shop.execute("SELECT content FROM orders ORDER BY rowid").fetchall() == [
            ("three apples",),
            ("one pear",),
        ]


def test_the_example_of_an_own_listener(new_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    broker = new_broker("sqlite", auto_create=True)
    for order in ("three apples", "one pear"):
        assert _produce(broker.endpoint, order, tmp_path, "ways/own_listener.py") == "COMMITTED"
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        assert len(shop.execute("SELECT content FROM orders").fetchall()) == 2


async def test_the_examples_check_rolls_back_what_never_ran(
    new_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    endpoint = new_broker("sqlite", auto_create=True, first_check=0.1, check_interval=0.1).endpoint
    assert await asyncio.to_thread(_produce, endpoint, "three apples", tmp_path) == "COMMITTED"
    async with Client(endpoint) as client:
        (one,) = await client.prepare("shop", "orders", ["never paid"])
        assert (await client.transaction(one)).state == PREPARED
        # The example's fence, in a process that only waits for the question.
        script = (
            "import sys\nfrom producer_sdk import TransactionProducer\n"
            "from producer_sdk.fence import TransactionFence\n"
            "with TransactionProducer(sys.argv[1], 'shop', TransactionFence('sqlite:///shop.db')) as producer:\n"
            "    while producer.get_transaction(sys.argv[2]).state.name == 'PREPARED':\n"
            "        pass\n"
        )
        command = [sys.executable, "-c", script, endpoint, one]
        await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, check=True, timeout=HANG)
        assert (await client.transaction(one)).state == ROLLED_BACK
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        query = "SELECT state FROM halfmq_fence WHERE transaction_id = ?"
        assert shop.execute(query, (one,)).fetchall() == [("refused",)]
