"""`halfmq serve --workers N`: brokers that share an address, while some of them, or their parent, are killed."""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from faults.client import Client, unique
from faults.history import judge
from faults.load import CHECKS, Load
from faults.sites import rounds
from halfmq.v1 import transaction_pb2
from support.brokers import BrokerProcess
from support.serving import run_serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.databases import Kind

WORKERS = 3
PATIENCE = 30.0

pytestmark = pytest.mark.timeout(600 + 60 * rounds(1))


@pytest.fixture
def broker(kind: Kind, fresh_database: Callable[[Kind], str]) -> Iterator[BrokerProcess]:
    with BrokerProcess(fresh_database(kind), workers=WORKERS, broker_id="box", **CHECKS) as made:
        yield made


def workers_of(broker: BrokerProcess) -> list[int]:
    """Process numbers of the workers that are there."""
    parent = broker.process.pid
    return [int(each) for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_that(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def names_of(endpoint: str, connections: int) -> set[str]:
    """The names of the brokers that so many connections reach."""
    names = set()
    with ExitStack() as stack:
        for _ in range(connections):
            client = stack.enter_context(Client(endpoint))
            requests: queue.SimpleQueue[transaction_pb2.CheckTransactionsRequest | None] = queue.SimpleQueue()
            register = transaction_pb2.RegisterProducer(producer_group=unique("g"))
            requests.put(transaction_pb2.CheckTransactionsRequest(register=register))
            names.add(next(client._transactions.CheckTransactions(iter(requests.get, None))).registered.broker_id)
            requests.put(None)
    return names


def test_connections_are_spread(broker: BrokerProcess) -> None:
    assert len(workers_of(broker)) == WORKERS
    assert names_of(broker.endpoint, 40) == {f"box-{number}" for number in range(1, WORKERS + 1)}
    processes = workers_of(broker)
    assert broker.stop() == 0, broker.log
    assert not any(map(runs, processes))
    assert broker.count("stopped") == WORKERS
    assert broker.count("[error") == 0, broker.log


def test_workers_are_killed_under_load(broker: BrokerProcess) -> None:
    """What was acknowledged is there, nothing is released twice, checks are answered, and the workers come back."""
    with Load([broker.endpoint], tasks=8, checked=True) as load:
        for victim in range(2):
            load.history.await_commits(100 * (victim + 1))
            before = workers_of(broker)
            os.kill(before[victim], signal.SIGKILL)
            await_that(
                lambda before=before: len(set(workers_of(broker)) - set(before)) == 1,  # type: ignore[misc]
                "the worker was not replaced",
            )
            await_that(lambda victim=victim: broker.count("serves") == WORKERS + victim + 1, "it does not serve")  # type: ignore[misc]
        load.history.await_commits(400)
    with Client(broker.endpoint) as client:
        assert judge(load.history, load.finish(client)) == []
    assert not load.errors, load.errors
    assert broker.count("ended (SIGKILL)") == 2
    assert len(names_of(broker.endpoint, 40)) == WORKERS


def test_they_end_with_their_parent(broker: BrokerProcess) -> None:
    processes = workers_of(broker)
    broker.kill()
    await_that(lambda: not any(map(runs, processes)), "workers without a parent go on")


def test_one_without_a_sign_of_life_is_replaced(broker: BrokerProcess) -> None:
    frozen, *others = workers_of(broker)
    os.kill(frozen, signal.SIGSTOP)
    await_that(lambda: not runs(frozen), "a frozen worker stays")
    await_that(lambda: broker.count("serves") == WORKERS + 1, "it was not replaced")
    assert broker.count("worker 1 gives no sign of life for 15 s; it is killed") == 1
    assert set(others) < set(workers_of(broker))


def test_one_that_was_told_to_end_is_replaced(broker: BrokerProcess) -> None:
    first, *others = workers_of(broker)
    os.kill(first, signal.SIGTERM)
    await_that(lambda: broker.count("serves") == WORKERS + 1, "it was not replaced")
    assert set(others) < set(workers_of(broker))
    assert broker.stop() == 0, broker.log
    assert broker.count("worker 1 ended (status 0)") == 1
    assert broker.count("[error") == 0, broker.log


def test_those_that_are_there_go_on_where_none_can_be_started(broker: BrokerProcess) -> None:
    """As at a limit of processes or of open files."""
    first, *others = workers_of(broker)
    _, most = resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (3, most))
    os.kill(first, signal.SIGKILL)
    await_that(lambda: broker.count("(Too many open files") + broker.count("Too many open files)") > 0, "nothing told")
    assert workers_of(broker) == others
    assert names_of(broker.endpoint, 20) == {"box-2", "box-3"}
    resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (most, most))
    await_that(lambda: len(workers_of(broker)) == WORKERS, "it was not replaced")
    await_that(lambda: broker.count("serves") == WORKERS + 1, "it does not serve")
    assert broker.stop() == 0, broker.log


def test_what_each_of_them_logs_has_its_number(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    """And the name by which the database knows it."""
    with BrokerProcess(fresh_database(kind), workers=2, log_format="json") as broker:
        parent = broker.process.pid
        assert broker.stop() == 0, broker.log
    lines = [json.loads(line) for line in broker.log.splitlines() if line.startswith("{")]
    serving = {each["worker"]: each["event"].split()[1] for each in lines if " serves on " in each["event"]}
    assert serving == {number: f"{socket.gethostname()}-{parent}-{number}" for number in (1, 2)}
    assert all(each["worker"] in {1, 2} for each in lines)


def test_a_signal_while_they_start(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    """From a terminal, all of the processes get it; the parent tells the others."""
    for number, who in ((signal.SIGTERM, os.kill), (signal.SIGINT, os.killpg)):
        for delay in (0.7, 1.2, 1.7):
            process = subprocess.Popen(
                [sys.executable, "-m", "halfmq_cli", "serve", "--workers=2", "--listen=127.0.0.1:0"],
                env={**os.environ, "HALFMQ_DATABASE": fresh_database(kind)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            time.sleep(delay)
            who(process.pid, number)
            _, log = process.communicate(timeout=PATIENCE)
            # The parent itself may not have come so far as to take signals.
            assert process.returncode in {0, -number, 130}, log
            assert "worker.py" not in log, log


def test_files_of_the_current_directory_are_not_modules(
    kind: Kind, fresh_database: Callable[[Kind], str], tmp_path: Path
) -> None:
    """And nobody who reads the address is needed."""
    (tmp_path / "broker.py").write_text("print('hello', flush=True)")
    halfmq = Path(sys.executable).with_name("halfmq")
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [halfmq, "serve", "--workers=2", "--listen=127.0.0.1:0"],
            env={**os.environ, "HALFMQ_DATABASE": fresh_database(kind)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
    assert process.stderr is not None
    lines = [process.stderr.readline()]
    while sum(" serves on " in line for line in lines) < 2:
        lines.append(process.stderr.readline())
        assert lines[-1], lines
    process.terminate()
    _, rest = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (lines, rest)
    assert "error" not in "".join([*lines, rest])


def test_a_worker_that_hangs_is_killed_in_the_end(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    with BrokerProcess(fresh_database(kind), workers=2, drain=0) as broker:
        processes = workers_of(broker)
        os.kill(processes[0], signal.SIGSTOP)
        assert broker.stop() == 1
        assert not any(map(runs, processes))
        assert broker.count("did not end within") == 1


class TestWrongSettings:
    @pytest.fixture
    def database(self, kind: Kind, fresh_database: Callable[[Kind], str]) -> str:
        return fresh_database(kind)

    def test_an_address_in_use(self, database: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            listen = f"127.0.0.1:{other.getsockname()[1]}"
            refusal = run_serve(f"--listen={listen}", "--workers=2", HALFMQ_DATABASE=database)
        refusal.names("listen", listen, "another process")

    def test_an_address_of_other_workers(self, database: str) -> None:
        with BrokerProcess(database, workers=2) as broker:
            refusal = run_serve(f"--listen={broker.endpoint}", "--workers=2", HALFMQ_DATABASE=database)
        refusal.names("listen", broker.endpoint, "another process")

    def test_one_of_the_addresses_of_a_name_in_use(self, database: str) -> None:
        found = {each[4][0] for each in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
        family, own = (socket.AF_INET6, "::1") if "::1" in found else (socket.AF_INET, "127.0.0.1")
        with socket.create_server((own, 0), family=family) as other:
            listen = f"localhost:{other.getsockname()[1]}"
            refusal = run_serve(f"--listen={listen}", "--workers=2", HALFMQ_DATABASE=database)
        refusal.names("listen", listen, "another process")

    def test_a_certificate_that_is_none(self, database: str, tmp_path: Path) -> None:
        for name in ("chain.pem", "key.pem"):
            (tmp_path / name).write_text("-----BEGIN nothing")
        files = [f"--tls-certificate={tmp_path / 'chain.pem'}", f"--tls-key={tmp_path / 'key.pem'}"]
        refusal = run_serve("--workers=2", *files, HALFMQ_DATABASE=database)
        refusal.names("tls_certificate", "chain.pem", "PEM files")

    def test_a_name_that_leaves_no_room_for_numbers(self, database: str) -> None:
        refusal = run_serve("--workers=10", f"--broker-id={'x' * 253}", HALFMQ_DATABASE=database)
        refusal.names("broker_id", "253 characters", "at most 255")

    def test_a_database_for_one_broker(self, tmp_path: Path) -> None:
        refusal = run_serve("--workers=2", HALFMQ_DATABASE=f"sqlite:///{tmp_path}/own.db")
        refusal.names("workers", "embedded database", "MySQL or MariaDB")

    def test_what_a_worker_refuses_is_told_once(self, database: str) -> None:
        refusal = run_serve("--workers=3", HALFMQ_DATABASE=f"{database}_gone")
        refusal.names("database", "_gone")
