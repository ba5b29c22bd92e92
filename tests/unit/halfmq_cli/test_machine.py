"""What others use of the machine is told apart from what is measured."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from halfmq_cli.bench.machine import Machine

BUSY = "import time; until = time.monotonic() + 30\nwhile time.monotonic() < until: pass"
# Its parent ends at once, so it belongs to nobody here.
STRANGER = f"""
import os
if os.fork() == 0:
    os.setsid()
    print(os.getpid(), flush=True)
    exec({BUSY!r})
os._exit(0)
"""


def test_children_are_part_of_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        assert child.pid not in Machine()._others()
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("part_of_it", [True, False])
def test_strangers_are_not_unless_named(part_of_it: bool) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STRANGER], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    stranger = int(starter.stdout.readline())
    starter.wait()
    starter.stdout.close()
    try:
        machine = Machine(stranger) if part_of_it else Machine()
        time.sleep(1.0)
        assert (stranger in machine._others()) == (not part_of_it)
        assert part_of_it or machine.used_by_others() > 0
    finally:
        subprocess.run(["kill", "-9", str(stranger)], check=True)
