"""examples/ways/work_queue.py: a worker that is killed is replaced, and jobs of one customer keep their order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from producer_sdk.testing import embedded_broker
from support.patience import HANG

if TYPE_CHECKING:
    from broker.embedded import EmbeddedBroker

EXAMPLE = Path(__file__).parents[3] / "examples" / "ways" / "work_queue.py"


def command(broker: EmbeddedBroker, *arguments: str) -> list[str]:
    return [sys.executable, "-u", str(EXAMPLE), broker.endpoint, *arguments]


def put(broker: EmbeddedBroker, *jobs: str) -> None:
    subprocess.run(command(broker, "put", *jobs), check=True, timeout=HANG)


def worker(broker: EmbeddedBroker) -> subprocess.Popen[str]:
    return subprocess.Popen(command(broker, "work"), stdout=subprocess.PIPE, text=True)


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


def test_a_worker_that_dies_is_replaced() -> None:
    with embedded_broker(["jobs"]) as broker:
        # Long enough for the worker to be killed in the midst of it, on a busy machine too.
        put(broker, "anna:5")
        first = worker(broker)
        assert lines(first, 1) == ["begins anna:5, attempt 1"]
        first.kill()
        assert first.communicate(timeout=HANG)[0] == ""
        put(broker, "anna:0", "ben:0")
        second = worker(broker)
        done = lines(second, 6)
        second.terminate()
        assert second.wait(60) == 0
        second.communicate()
    begun = {"begins anna:5, attempt 2", "begins anna:0, attempt 1", "begins ben:0, attempt 1"}
    assert set(done) == {*begun, "ends anna:5", "ends anna:0", "ends ben:0"}
    assert done.index("ends anna:5") < done.index("begins anna:0, attempt 1"), "jobs of one customer are in order"
