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
from halfmq_cli.gathering import GatheredMetrics
from halfmq_cli.serving import BACKSTOP, HEARTBEAT, REFUSED, ended_by_signal, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from broker.config import BrokerConfig

PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds before a worker is replaced that ended soon after its start: more after each."""
SOON = 10.0
LATE = 5.0
"""Seconds that a worker may take to end beyond what it gives itself."""
SILENCES = 3
"""Signs of life that a worker may miss."""
LONGEST_NAME = 255
"""Characters of a broker's name."""

logger = logging.getLogger("halfmq.workers")


async def run_workers(config: BrokerConfig, served: Callable[[], None]) -> bool:
    """Runs as many workers as the settings say, until a signal ends them; returns whether all ended well.

    Once they serve, `served` is called.

    Raises:
        ConfigurationError: The address or the name cannot be used, or the database is one for a single broker.
        SystemExit: A worker did not start; it has told why.
    """
    if config.database.startswith("sqlite"):
        raise ConfigurationError(
            "One broker at a time can use the embedded database: leave workers out, or name a MySQL or MariaDB server.",
            field="workers",
        )
    if len(f"{config.name}-{config.workers}") > LONGEST_NAME:
        raise ConfigurationError(
            f"broker_id has {len(config.broker_id)} characters; with the worker's number behind it at most"
            f" {LONGEST_NAME} are allowed.",
            field="broker_id",
        )
    with (
        _reserved("listen", config.listen) as listen,
        _reserved("admin_listen", config.admin_listen)
        if config.admin_listen
        else contextlib.nullcontext("") as admin_listen,
        _reserved("console_listen", config.console_listen)
        if config.console_listen
        else contextlib.nullcontext("") as console_listen,
        ended_by_signal() as ending,
        contextlib.ExitStack() as resources,
    ):
        ready = replace(config, listen=listen, admin_listen=admin_listen, console_listen=console_listen)
        numbers = range(1, config.workers + 1)
        gathered = (
            resources.enter_context(GatheredMetrics(config.metrics_listen, numbers)) if config.metrics_listen else None
        )
        workers = [
            _Worker(
                number,
                replace(
                    ready,
                    broker_id=f"{config.name}-{number}",
                    metrics_listen="" if gathered is None else gathered.address_of(number),
                ),
            )
            for number in numbers
        ]
        running = asyncio.create_task(
            _run(workers, served, "" if gathered is None else gathered.endpoint, console_listen)
        )
        ended = asyncio.create_task(ending.wait())
        await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in (running, ended):
            task.cancel()
        ended_well = await asyncio.gather(*[worker.stop() for worker in workers])
        try:
            await running
        except _NotStarted as error:
            if error.status != REFUSED:
                logger.error("%s", error)
            raise SystemExit(max(error.status, 1)) from None
        except asyncio.CancelledError:
            return all(ended_well)
    return False


async def _run(workers: Sequence[_Worker], served: Callable[[], None], *endpoints: str) -> None:
    # The others would say the same of wrong settings, and wait for its migration.
    await workers[0].start()
    await asyncio.gather(*[worker.start() for worker in workers[1:]])
    tell(workers[0].endpoint, workers[0].admin_endpoint, *endpoints)
    served()
    await asyncio.gather(*[worker.keep() for worker in workers])


class _NotStarted(Exception):
    """A worker ended before it served; `status` is that of its process, or 0 where there was none."""

    def __init__(self, number: int, status: int, why: str) -> None:
        super().__init__(f"worker {number} ended ({why}) before it served")
        self.status = status


@contextlib.contextmanager
def _reserved(setting: str, listen: str) -> Iterator[str]:
    """Reserves the address of a setting for the workers; yields it with its port.

    The sockets never listen, so they get no connections.
    """
    host, _, text = listen.rpartition(":")
    port = int(text)
    with contextlib.ExitStack() as held:
        try:
            # A name may stand for several addresses, and gRPC listens on all of them.
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, (own, _, *rest) in dict.fromkeys(found):
                # With SO_REUSEPORT one would share the port of somebody else's workers.
                with socket.socket(family, kind, protocol) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((own, port, *rest))
                reserved = held.enter_context(socket.socket(family, kind, protocol))
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                reserved.bind((own, port, *rest))
                port = reserved.getsockname()[1]
        except OSError as error:
            raise ConfigurationError.of_address(listen, error, field=setting) from error
        yield f"{host}:{port}"


class _Worker:
    """One broker process."""

    def __init__(self, number: int, config: BrokerConfig) -> None:
        self._number = number
        self._config = config
        self._process: asyncio.subprocess.Process | None = None
        self._serves = False
        self.endpoint, self.admin_endpoint = config.listen, config.admin_listen
        # While it starts, it takes the time of a drain to give up, and may drain after that.
        self._longest = 2 * config.drain + CLOSING + BACKSTOP + LATE

    async def start(self, *, replaces: bool = False) -> None:
        """Starts it, and waits until it serves.

        Raises:
            _NotStarted: It ended before, or no process could be started.
        """
        self._serves = False
        try:
            # Isolated from the current directory, where files may have the names of modules.
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "halfmq_cli.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise _NotStarted(self._number, 0, str(error)) from error
        assert process.stdin is not None  # noqa: S101 - pipes
        assert process.stdout is not None  # noqa: S101
        # Not by arguments or the environment: others could see the database's password.
        given = {"settings": asdict(self._config), "number": self._number, "replaces": replaces}
        process.stdin.write(json.dumps(given).encode() + b"\n")
        while line := await process.stdout.readline():
            if line.decode(errors="replace").strip() == self.endpoint:
                self._serves = True
                return
        status = await process.wait()
        raise _NotStarted(self._number, status, _shown(status))

    async def keep(self) -> None:
        """Replaces it whenever it ends, or gives no sign of life."""
        pause = PAUSE
        while True:
            began = time.monotonic()
            status = await self._ended() if self._serves else None
            self._serves = False
            if time.monotonic() - began > SOON:
                pause = PAUSE
            if status is not None:
                level = logging.ERROR if status else logging.INFO
                what = _shown(status)
                logger.log(level, "worker %d ended (%s); another one begins in %g s", self._number, what, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                await self.start(replaces=True)
            except _NotStarted as error:
                logger.error("%s; another one begins in %g s", error, pause)

    async def _ended(self) -> int:
        """Waits until it has ended, which a worker without a sign of life is made to."""
        process = self._process
        assert process is not None  # noqa: S101 - it serves
        assert process.stdout is not None  # noqa: S101 - a pipe
        silences = 0
        while silences < SILENCES:
            try:
                async with asyncio.timeout(HEARTBEAT):
                    if not await process.stdout.readline():
                        return await process.wait()
                silences = 0
            except TimeoutError:
                silences += 1
        logger.error("worker %d gives no sign of life for %g s; it is killed", self._number, silences * HEARTBEAT)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return await process.wait()

    async def stop(self) -> bool:
        """Ends it; returns whether it ended well, which one that does not serve cannot fail to."""
        process, served = self._process, self._serves
        if process is None or process.returncode is not None:
            return True
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(self._longest):
                return await process.wait() == 0 or not served
        except TimeoutError:
            logger.error("worker %d did not end within %g s; it is killed", self._number, self._longest)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            return False


def _shown(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"
