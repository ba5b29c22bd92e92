"""`halfmq bench relay`."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Annotated, Any

import typer

from broker.errors import BrokerError, ConfigurationError
from client_core.ids import new_id
from client_core.message import Message
from halfmq_cli.bench.accounting import check_arrived, numbers_stored
from halfmq_cli.bench.databases import for_sqlalchemy, side_by_side, with_tables
from halfmq_cli.bench.floor import Floor
from halfmq_cli.bench.load import TOPIC, body_of, marked
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess, cpu_seconds_of
from halfmq_cli.bench.report import micros_each, print_figures
from halfmq_cli.children import environment
from halfmq_cli.serving import fail
from producer_sdk.outbox import BrokerTarget, Outbox

BATCH = 500
_COLUMNS = "message_id, topic, message_group, state, retries, due_at, created_at, changed_at, size, body"
_PATIENCE = 300.0


def relay(
    database: DatabaseUrl = None,
    rows: Annotated[int, typer.Option(min=1000, help="Messages in the outbox, per round.")] = 50_000,
    size: Size = 1024,
    groups: Annotated[int, typer.Option(min=0, help="Message groups they are of; 0: they have none.")] = 0,
    keep_hours: Annotated[float, typer.Option(min=0, help="Hours that they stay as GLOBAL_COMMIT.")] = 0.0,
    rounds: Annotated[int, typer.Option(min=1, help="Times that the outbox is filled and emptied.")] = 3,
    json_output: Json = False,
) -> None:
    """Measure a relay that empties an outbox, next to the same reads, deletes and sends by themselves.

    Broker and relay are separate processes. The floor: plain driver code reads the same rows in batches and deletes
    them; and the same messages are sent without a database, in requests of the same size. Both one after the other.
    """
    try:
        with ExitStack() as stack:
            (url, shop_url), shown = stack.enter_context(side_by_side(database, 2))
            opened = stack.enter_context(with_tables(url))
            broker = stack.enter_context(BrokerProcess(url))
            shop = stack.enter_context(closing(_Shop(shop_url, size, groups)))
            run = _Run(rows)
            for _ in range(rounds):
                run.read_and_delete += shop.read_and_delete(rows)
                run.sends += shop.send(broker.endpoint, rows)
                run.take(shop, broker, shop_url, keep_hours)
            check_arrived(numbers_stored(opened), range(2 * rows * rounds))
    except BrokerError as error:
        fail(error)
    figures = run.figures(rounds) | {"database": shown, "rows": rows, "size_bytes": size, "groups": groups}
    print_figures("relay", figures, as_json=json_output)


class _Shop(Floor):
    """A user's database with an outbox, and plain driver code on it."""

    def __init__(self, url: str, size: int, groups: int) -> None:
        super().__init__(url)
        self._outbox = Outbox(for_sqlalchemy(url))
        self._outbox.create_tables()
        self._rest = body_of(size)
        self._size = size
        self._groups = groups
        self._number = 0

    def close(self) -> None:
        """Closes the connections."""
        self._outbox.close()
        super().close()

    def fill(self, count: int) -> None:
        """Writes messages, as committed business transactions leave them."""
        now = time.time_ns() // 1000
        for begin in range(0, count, BATCH):
            new = [self._row(now) for _ in range(min(BATCH, count - begin))]
            self._transact(lambda new=new: self._insert(f"INSERT INTO halfmq_outbox ({_COLUMNS}) VALUES ", new))  # type: ignore[misc]

    def _row(self, now: int) -> tuple[Any, ...]:
        number = self._number
        self._number += 1
        group = f"group-{number % self._groups}" if self._groups else None
        body = marked(number, self._rest)
        return (new_id(), TOPIC, group, "LOCAL_COMMIT", 0, now, now, now, len(body), body)

    def read_and_delete(self, count: int) -> float:
        """Seconds to read and delete as many rows."""
        before = self._number
        self.fill(count)
        self._number = before
        start = time.perf_counter()
        while self._transacted_batch():
            pass
        return time.perf_counter() - start

    def _transacted_batch(self) -> bool:
        self._transact(self._read)
        ids = [str(row[0]) for row in self._found]
        if ids:
            self._transact(lambda: self._execute(f"DELETE FROM halfmq_outbox WHERE id IN ({','.join(ids)})"))
        return bool(ids)

    def _read(self) -> None:
        self._execute(f"SELECT id, {_COLUMNS} FROM halfmq_outbox ORDER BY id LIMIT {BATCH}")
        self._found = self._cursor.fetchall()

    def send(self, endpoint: str, count: int) -> float:
        """Seconds to send as many messages."""
        messages = [Message(row[1], row[9], message_group=row[2], message_id=row[0]) for row in self._rows(count)]
        parts = [messages[begin : begin + BATCH] for begin in range(0, count, BATCH)]
        target = BrokerTarget(endpoint)
        start = time.perf_counter()
        # Two requests under way at a time, as the relay has them.
        with ThreadPoolExecutor(2) as threads:
            calls = threads.map(lambda part: target.send(part, lambda: True), parts)
            failed = [each for outcomes in calls for each in outcomes if each is not None]
        taken = time.perf_counter() - start
        target.close()
        if failed:
            raise ConfigurationError(f"Messages were not stored: {failed[0]}", field="bench")
        return taken

    def _rows(self, count: int) -> list[tuple[Any, ...]]:
        return [self._row(0) for _ in range(count)]

    def pending(self) -> bool:
        """Whether the relay has work left."""
        self._transact(lambda: self._execute("SELECT id FROM halfmq_outbox WHERE state = 'LOCAL_COMMIT' LIMIT 1"))
        return bool(self._cursor.fetchall())


class _Run:
    """What was measured."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.read_and_delete = self.sends = self._relayed = self._cpu = self._broker_cpu = 0.0

    def take(self, shop: _Shop, broker: BrokerProcess, shop_url: str, keep_hours: float) -> None:
        """One round of the relay: from its start on an outbox that is full to the last row."""
        shop.fill(self._rows)
        command = [sys.executable, "-m", "halfmq_cli", "relay", "--endpoint", broker.endpoint, "--log-level", "warning"]
        command += ["--keep-hours", str(keep_hours)]
        variables = environment(HALFMQ_RELAY_DATABASE=shop_url)
        relay = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
        try:
            if relay.stdout is None or not relay.stdout.readline():
                raise ConfigurationError("The relay did not start; its error is above.", field="bench")
            start, cpu = time.perf_counter(), broker.cpu_seconds()
            own_cpu = cpu_seconds_of(relay.pid)
            while shop.pending():
                if time.perf_counter() > start + _PATIENCE or relay.poll() is not None:
                    raise ConfigurationError("The relay does not get on; its log is above.", field="bench")
                time.sleep(0.05)
            self._relayed += time.perf_counter() - start
            self._cpu += cpu_seconds_of(relay.pid) - own_cpu
            self._broker_cpu += broker.cpu_seconds() - cpu
        finally:
            relay.terminate()
            relay.wait(30)

    def figures(self, rounds: int) -> dict[str, Any]:
        """Rates, and what a row costs."""
        count = self._rows * rounds
        rate, floor = count / self._relayed, count / (self.read_and_delete + self.sends)
        return {
            "rows_per_s": round(rate, 1),
            "floor_per_s": round(floor, 1),
            "ratio": round(rate / floor, 3),
            "read_and_delete_per_s": round(count / self.read_and_delete, 1),
            "sends_per_s": round(count / self.sends, 1),
            "relay_cpu_us": micros_each(self._cpu, count),
            "broker_cpu_us": micros_each(self._broker_cpu, count),
            "rounds": rounds,
        }
