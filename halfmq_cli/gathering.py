"""The metrics of several workers as those of one place: asked for at once, each with the label worker."""

from __future__ import annotations

import http.client
import re
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Self

from broker.metrics.listener import PATH, UNIX, MetricsListener
from broker.metrics.metrics import SHORTEST_PAUSE

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWER_TIMEOUT = 2.0
"""Seconds for all workers to answer; one that stands still is left out."""
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class GatheredMetrics:
    """Listens for metrics, and asks the workers for theirs, by sockets in a folder of this user alone."""

    def __init__(self, address: str, numbers: Sequence[int]) -> None:
        """Takes the address, and the workers' numbers.

        Raises:
            ConfigurationError: the address cannot be used.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="halfmq-", ignore_cleanup_errors=True)
        self._files = {number: Path(self._folder.name) / f"{number}.sock" for number in numbers}
        self._lock = threading.Lock()
        self._text, self._made_at = b"", float("-inf")
        self._executor = ThreadPoolExecutor(2 * len(numbers), thread_name_prefix="halfmq-metrics-of-workers")
        try:
            self._listener = MetricsListener(address, self.render)
        except BaseException:
            self._end()
            raise

    @property
    def endpoint(self) -> str:
        """The address."""
        return self._listener.address

    def address_of(self, number: int) -> str:
        """Where a worker listens for this one."""
        return f"{UNIX}{self._files[number]}"

    def render(self) -> bytes:
        """The text of all workers that answer in time, not older than half a second.

        One at a time: several that wait for a worker that stands still would have no threads left to ask the others.
        """
        with self._lock:
            if time.monotonic() - self._made_at >= SHORTEST_PAUSE:
                self._text = self._gathered()
                self._made_at = time.monotonic()
            return self._text

    def _gathered(self) -> bytes:
        asked = {number: self._executor.submit(ask_for_metrics, file) for number, file in self._files.items()}
        wait(asked.values(), timeout=ANSWER_TIMEOUT)
        for each in asked.values():
            each.cancel()
        texts = {
            number: each.result()
            for number, each in asked.items()
            if each.done() and not each.cancelled() and each.exception() is None
        }
        up = "".join(f'halfmq_worker_up{{worker="{number}"}} {int(number in texts)}\n' for number in self._files)
        head = "# HELP halfmq_worker_up Whether a worker answered.\n# TYPE halfmq_worker_up gauge\n"
        return (head + up + merged(texts)).encode()

    def __enter__(self) -> Self:
        """Listens already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self._listener.close()
        self._end()

    def _end(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._folder.cleanup()


def merged(texts: dict[int, str]) -> str:
    """Texts of several workers as one: the samples of each metric together, with the number in the label worker."""
    heads: dict[str, str] = {}
    samples: dict[str, list[str]] = {}
    for number, text in texts.items():
        family = ""
        for line in text.split("\n"):
            if line.startswith("#"):
                family = line.split(" ", 3)[2]
                if line not in heads.setdefault(family, ""):
                    heads[family] += f"{line}\n"
            elif line:
                samples.setdefault(family, []).append(_labelled(line, number))
    return "".join(head + "".join(samples.get(family, ())) for family, head in heads.items())


def _labelled(line: str, number: int) -> str:
    name = _NAME.match(line)
    end = name.end() if name is not None else 0
    label = f'worker="{number}"'
    if line[end : end + 1] == "{":
        return f"{line[:end]}{{{label},{line[end + 1 :]}\n"
    return f"{line[:end]}{{{label}}}{line[end:]}\n"


class _Connection(http.client.HTTPConnection):
    """By a file instead of an address."""

    def __init__(self, file: Path) -> None:
        super().__init__("worker", timeout=ANSWER_TIMEOUT)
        self._file = str(file)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_TIMEOUT)
        self.sock.connect(self._file)


def ask_for_metrics(file: Path) -> str:
    """The metrics of a process that listens at a file; raises OSError."""
    with closing(_Connection(file)) as connection:
        connection.request("GET", PATH)
        return connection.getresponse().read().decode()
