"""`halfmq relay`: in processes of its own, as operators start it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.orm import Session

from producer_sdk import Admin, Message
from producer_sdk.outbox import Outbox, OutboxState
from support.patience import HANG
from ways.outbox.running import until
from ways.shops import make_shop, texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers import BrokerProcess
    from ways.shops import Shop

HALFMQ = [sys.executable, "-m", "halfmq_cli", "relay"]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with make_shop("sqlite", tmp_path) as made:
        yield made


def relay(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HALFMQ, *arguments], capture_output=True, text=True, timeout=HANG, check=False, env=environment
    )


def put(shop: Shop, outbox: Outbox, *messages: Message) -> None:
    with Session(shop.engine) as session:
        outbox.put_many(session, messages)
        session.commit()


def status(shop: Shop, *arguments: str) -> dict[str, Any]:
    done = relay(f"--database={shop.url}", *(arguments or ("--status",)))
    assert done.returncode == 0, done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def test_it_relays_until_it_is_told_to_stop(
    shop: Shop, new_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = new_broker("sqlite")
    with Admin(broker.endpoint) as admin:
        admin.create_topic("orders")
    (tmp_path / "url").write_text(f"{shop.url}\n")
    (tmp_path / "deciding.py").write_text(
        "from producer_sdk import LocalTransactionState\n\n\n"
        "def decide(message):\n    return LocalTransactionState.COMMIT\n"
    )
    command = [*HALFMQ, f"--database-file={tmp_path / 'url'}", f"--endpoint={broker.endpoint}", "--create-tables"]
    process = subprocess.Popen(
        [*command, "--decide=deciding:decide"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("relaying as ")
    outbox = Outbox(shop.engine)
    put(shop, outbox, Message("orders", "lamp"), Message("no-such-topic", "x"))
    outbox.announce(Message("orders", "chair"), decide_after=0)
    until(lambda: outbox.status().counts == {OutboxState.MESSAGE_ERROR: 1})
    shown = status(shop)
    assert shown["counts"] == {"MESSAGE_ERROR": 1}
    assert f"-{process.pid}-" in shown["relay"]
    (failed,) = shown["errors"]
    assert (failed["topic"], failed["was"]) == ("no-such-topic", "LOCAL_COMMIT")
    with Admin(broker.endpoint) as admin:
        admin.create_topic("no-such-topic")
    assert status(shop, "--retry=all")["retried"] == 1
    until(lambda: not outbox.status().counts)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=30)
    assert process.returncode == 0, log
    assert status(shop)["relay"] is None
    assert texts(broker.endpoint, "orders") == ["chair", "lamp"]
    assert texts(broker.endpoint, "no-such-topic") == ["x"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "database: is missing"),
        (["--database-file=/nowhere"], "database-file: cannot be read"),
        (["--database=nonsense"], "database: database is no URL"),
        (["--database={url}"], "endpoint: is missing"),
        (["--database={url}", "--endpoint=here"], "endpoint"),
        (["--database={url}", "--endpoint=h:1", "--lease=0"], "lease:"),
        (["--database={url}", "--endpoint=h:1", "--on-error=x"], "on_error:"),
        (["--database={url}", "--endpoint=h:1", "--decide=nothing"], "decide:"),
        (["--database={url}", "--table=a b"], "table:"),
        (["--database={url}", "--retry=one"], "retry: is the ids"),
        (["--database={url}", "--endpoint=h:1", "--tls-ca=/nowhere"], "tls-ca: cannot be read"),
        (["--database={url}", "--endpoint=h:1"], "--create-tables makes missing tables"),
    ],
)
def test_bad_options_are_named(shop: Shop, arguments: list[str], error: str) -> None:
    done = relay(*[each.format(url=shop.url) for each in arguments])
    assert done.returncode == 2, done.stderr
    assert error in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_failed_messages_are_skipped(shop: Shop) -> None:
    outbox = Outbox(shop.engine)
    outbox.create_tables()
    put(shop, outbox, Message("orders", "lamp"))
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE halfmq_outbox SET state = 'MESSAGE_ERROR', failed_in = 'LOCAL_COMMIT'")
    for option in ("--retry=17,1001", "--skip=17"):
        done = relay(f"--database={shop.url}", option)
        assert done.returncode == 1
        assert f"MESSAGE_ERROR: {option.partition('=')[2].replace(',', ', ')};" in done.stderr
        shown = json.loads(done.stdout)
        assert shown["counts"] == {"MESSAGE_ERROR": 1}
    done = relay(f"--database={shop.url}", "--skip=1,2")
    shown = json.loads(done.stdout)
    assert (shown["skipped"], shown["not_failed"], shown["counts"]) == (1, [2], {"LOCAL_ROLLBACK": 1})
    assert done.returncode == 1
    assert "MESSAGE_ERROR: 2;" in done.stderr
    # It is skipped by now, and not failed any more.
    assert relay(f"--database={shop.url}", "--skip=1").returncode == 1


def test_the_example_runs(shop: Shop, new_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    broker = new_broker("sqlite", auto_create=True)
    example = Path(__file__).parents[2] / "examples" / "ways" / "outbox.py"
    done = subprocess.run(
        [sys.executable, str(example), broker.endpoint, shop.url],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "all are sent"
    assert texts(broker.endpoint, "orders") == ["a chair", "a lamp", "a sofa for 300"]
