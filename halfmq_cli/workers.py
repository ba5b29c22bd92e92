"""`halfmq serve --workers N`: several brokers on one machine that share an address, and the process that keeps them.

Each worker is a broker with a name and connections of its own; together they are what several brokers on one database
always are. The kernel spreads the connections over them (SO_REUSEPORT). A worker that ends is replaced, and all end
with the parent, however that ends: their standard input is a pipe that it holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from broker.app import CLOSING
from broker.errors import ConfigurationError
from halfmq_cli.serving import BACKSTOP, ended_by_signal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from broker.config import BrokerConfig

PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds before a worker is replaced that ended soon after its start: more after each."""
SOON = 10.0
LATE = 5.0
"""Seconds that a worker may take to end beyond what it gives itself."""

logger = logging.getLogger("halfmq.workers")


async def run_workers(config: BrokerConfig) -> bool:
    """Runs as many workers as the settings say, until a signal ends them; returns whether all ended well.

    Raises:
        ConfigurationError: The address cannot be used, or the database is one for a single broker.
        SystemExit: A worker did not start; it has told why.
    """
    if config.database.startswith("sqlite"):
        raise ConfigurationError(
            "One broker at a time can use the embedded database: leave workers out, or name a MySQL or MariaDB server.",
            field="workers",
        )
    with _reserved(config.listen) as listen, ended_by_signal() as ending:
        workers = [_Worker(number, replace(config, listen=listen)) for number in range(1, config.workers + 1)]
        running = asyncio.create_task(_run(workers))
        ended = asyncio.create_task(ending.wait())
        await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in (running, ended):
            task.cancel()
        ended_well = await asyncio.gather(*[worker.stop() for worker in workers])
        try:
            await running
        except _NotStarted as error:
            raise SystemExit(error.status) from None
        except asyncio.CancelledError:
            return all(ended_well)
    return False


async def _run(workers: Sequence[_Worker]) -> None:
    # The others would say the same of wrong settings, and wait for its migration.
    await workers[0].start()
    await asyncio.gather(*[worker.start() for worker in workers[1:]])
    sys.stdout.write(f"{workers[0].endpoint}\n")
    sys.stdout.flush()
    await asyncio.gather(*[worker.keep() for worker in workers])


class _NotStarted(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@contextlib.contextmanager
def _reserved(listen: str) -> Iterator[str]:
    """Reserves an address for the workers; yields it with its port.

    The socket never listens, so it gets no connections.
    """
    host, _, port = listen.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        # With SO_REUSEPORT one would share the port of somebody else's workers.
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
        with socket.socket(family, kind, protocol) as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(address)
            yield f"{host}:{held.getsockname()[1]}"
    except OSError as error:
        raise ConfigurationError(
            f"The address {listen} cannot be used ({error.strerror}): is another process there, is it this machine's?",
            field="listen",
        ) from error


class _Worker:
    """One broker process."""

    def __init__(self, number: int, config: BrokerConfig) -> None:
        self._number = number
        self._config = replace(config, broker_id=f"{config.broker_id}-{number}") if config.broker_id else config
        self._process: asyncio.subprocess.Process | None = None
        self.endpoint = config.listen
        self._longest = config.drain + CLOSING + BACKSTOP + LATE

    async def start(self) -> None:
        """Starts it, and waits until it serves.

        Raises:
            _NotStarted: It ended before.
        """
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "halfmq_cli.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None  # noqa: S101 - pipes
        assert process.stdout is not None  # noqa: S101
        # Not by arguments or the environment: others could see the database's password.
        process.stdin.write(json.dumps(asdict(self._config)).encode() + b"\n")
        if not await process.stdout.readline():
            raise _NotStarted(await process.wait() or 1)

    async def keep(self) -> None:
        """Replaces it whenever it ends."""
        pause = PAUSE
        while True:
            began = time.monotonic()
            status = await self._process.wait() if self._process is not None else None
            pause = PAUSE if time.monotonic() - began > SOON else min(2 * pause, LONGEST_PAUSE)
            logger.error("worker %d ended (%s); another one begins in %g s", self._number, _shown(status), pause)
            await asyncio.sleep(pause)
            with contextlib.suppress(_NotStarted):
                await self.start()

    async def stop(self) -> bool:
        """Ends it; returns whether it ended well."""
        process = self._process
        if process is None:
            return True
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        try:
            async with asyncio.timeout(self._longest):
                return await process.wait() == 0
        except TimeoutError:
            logger.error("worker %d did not end within %g s; it is killed", self._number, self._longest)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            return False


def _shown(status: int | None) -> str:
    if status is not None and status < 0:
        return signal.Signals(-status).name
    return f"status {status}"
