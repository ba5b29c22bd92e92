"""Runs a broker in this process, until a signal, or the end of its parent."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

from broker.app import CLOSING, Broker
from halfmq_cli.memory import give_back_large_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.config import BrokerConfig
    from broker.errors import BrokerError

BACKSTOP = 5.0
"""Seconds after the end of the drain when the process ends in any case."""


def fail(error: BrokerError) -> NoReturn:
    """Ends the command with an error: the setting or field at fault, and what to do."""
    where = f"{error.field}: " if error.field else ""
    sys.stderr.write(f"halfmq: {where}{error.message}\n")
    raise SystemExit(2)


def run_broker(config: BrokerConfig, *, parent: int | None = None) -> None:
    """Runs a broker; its address is the one line on standard output.

    Args:
        config: the settings.
        parent: for one of several workers, which share the address: a descriptor that is closed when the parent ends.

    Raises:
        ConfigurationError: a setting, the database or the address is not usable.
    """
    give_back_large_blocks()
    # Threads with database work can block the loop for this long; the default, 5 ms, would delay answers.
    sys.setswitchinterval(0.0005)
    # Objects created so far are long-lived: the garbage collector skips them, and runs less often than every 700
    # new objects.
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    asyncio.run(_serve(config, parent))


@contextlib.contextmanager
def ended_by_signal() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    yield ending


async def _serve(config: BrokerConfig, parent: int | None) -> None:
    broker = Broker(config, shares_port=parent is not None)
    with ended_by_signal() as ending:
        if parent is not None:
            # Nothing is written to it: it can be read when it is closed.
            asyncio.get_running_loop().add_reader(parent, ending.set)
        starting = asyncio.ensure_future(broker.start())
        ended = asyncio.ensure_future(ending.wait())
        await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            await asyncio.wait({starting}, timeout=config.drain)
        if not starting.done():
            _end_at_once()  # A thread still waits for the database, and would keep the process alive.
        starting.result()
        # One line on standard output, for the parent process: the address.
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(f"{broker.endpoint}\n")
            sys.stdout.flush()
        await ended
        if parent is not None:
            asyncio.get_running_loop().remove_reader(parent)
        # In a thread, in case the loop itself is blocked.
        backstop = threading.Timer(config.drain + CLOSING + BACKSTOP, _end_at_once)
        backstop.daemon = True
        backstop.start()
        if not await broker.stop():
            _end_at_once()
        backstop.cancel()


def _end_at_once() -> NoReturn:
    """Ends the process at once, without waiting for its threads; the kernel closes its connections."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
