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
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from broker.app import CLOSING, Broker
from broker.errors import ConfigurationError, DatabaseReplaced
from broker.storage.engine.connection import parse_url
from halfmq_cli.memory import give_back_large_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.config import BrokerConfig
    from broker.errors import BrokerError

logger = logging.getLogger("halfmq.broker")

REFUSED = 2
"""Status of a command that was refused, and has told why."""
HEARTBEAT = 5.0
"""Seconds between two signs of life of one of several workers."""
BACKSTOP = 5.0
"""Seconds after the end of the drain when the process ends in any case."""


def refuse_missing_file(database: str) -> None:
    """Refuses the URL of a file that is not there: to open it would create it.

    Raises:
        ConfigurationError: there is no such file.
    """
    url = parse_url(database)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).is_file():
        raise ConfigurationError(f"There is no file {url.database!r}: correct the URL.", field="database")


def fail(error: BrokerError) -> NoReturn:
    """Ends the command with an error: the setting or field at fault, and what to do."""
    sys.stderr.write(f"halfmq: {shown(error)}\n")
    raise SystemExit(REFUSED)


def shown(error: BrokerError) -> str:
    """An error in a line: the setting or field at fault, and what to do."""
    return f"{error.field}: {error.message}" if error.field else error.message


def warn_of_arguments(database: str | None) -> None:
    """Logs a warning if the arguments of this process hold a password.

    Args:
        database: the URL that the option --database gave, if any.
    """
    if database is not None and parse_url(database).password:
        logger.warning(
            "--database: every user of this machine can see the arguments of a process, and these have the database's"
            " password: name a file that has the URL by --database-file, or set HALFMQ_DATABASE in the environment"
        )


def _nothing() -> None:
    return


def run_broker(
    config: BrokerConfig,
    *,
    parent: int | None = None,
    make_broker: Callable[..., Broker] = Broker,
    served: Callable[[], None] = _nothing,
) -> None:
    """Runs a broker; its address is a line on standard output, followed by those for operators and for metrics.

    Args:
        config: the settings.
        parent: for one of several workers, which share the address: a descriptor that is closed when the parent ends.
        make_broker: the broker's class.
        served: called once it serves; what is wrong with its start is told before, in one line.

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
    asyncio.run(_serve(make_broker(config, shares_port=parent is not None), parent, served))


@contextlib.contextmanager
def ended_by_signal() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    yield ending


async def _serve(broker: Broker, parent: int | None, served: Callable[[], None]) -> None:
    with ended_by_signal() as ending:
        stopped = contextlib.nullcontext() if parent is None else _with_parent(parent, ending)
        with stopped:
            await _run(broker, ending, served, lives=parent is not None)


@contextlib.contextmanager
def _with_parent(parent: int, ending: asyncio.Event) -> Iterator[None]:
    """Sets an event when a descriptor is closed at its other end: nothing is written to it, so it can be read then."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(parent)
        ending.set()

    loop.add_reader(parent, ended)
    try:
        yield
    finally:
        loop.remove_reader(parent)


async def _run(broker: Broker, ending: asyncio.Event, served: Callable[[], None], *, lives: bool) -> None:
    drain = broker.config.drain
    starting = asyncio.ensure_future(broker.start())
    ended = asyncio.ensure_future(ending.wait())
    await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        await asyncio.wait({starting}, timeout=drain)
    if not starting.done():
        _end_at_once()  # A thread still waits for the database, and would keep the process alive.
    starting.result()
    tell(broker.endpoint, broker.admin_endpoint, broker.metrics_endpoint, broker.console_endpoint)
    served()
    living = asyncio.ensure_future(_tell_that_it_lives()) if lives else None
    replaced = asyncio.ensure_future(broker.wait_until_replaced())
    await asyncio.wait({ended, replaced}, return_when=asyncio.FIRST_COMPLETED)
    # In a thread, in case the loop itself is blocked.
    backstop = threading.Timer(drain + CLOSING + BACKSTOP, _end_at_once)
    backstop.daemon = True
    backstop.start()
    if not await broker.stop():
        _end_at_once()
    backstop.cancel()
    if living is not None:
        living.cancel()
    if replaced.done():
        raise DatabaseReplaced
    replaced.cancel()


def tell(*endpoints: str) -> None:
    """Writes addresses for the parent process, a line each on standard output; without those that are empty.

    Whoever reads them may be gone.
    """
    try:
        sys.stdout.write("".join(f"{endpoint}\n" for endpoint in endpoints if endpoint))
        sys.stdout.flush()
    except OSError:
        # What is left in the buffer would be tried again at the end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


async def _tell_that_it_lives() -> None:
    """Writes a line from time to time: whoever started this process replaces it where none comes."""
    os.set_blocking(sys.stdout.fileno(), False)
    while True:
        await asyncio.sleep(HEARTBEAT)
        with contextlib.suppress(OSError):
            os.write(sys.stdout.fileno(), b"\n")


def _end_at_once() -> NoReturn:
    """Ends the process at once, without waiting for its threads; the kernel closes its connections."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
