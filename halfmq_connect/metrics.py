"""Metrics of relays, cdc and bridges for Prometheus: what they know, read when somebody asks."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from client_core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

__all__ = ["Reading", "counter", "gauge", "served", "sparingly"]

_SAMPLE_EVERY = 15.0
_PATIENCE = 1.0
"""Seconds that whoever asks waits for a look at a database."""
Reading: TypeAlias = "Callable[[], Iterator[Metric]]"
"""Reads all metrics of a program, in a thread of the listener."""


def counter(name: str, help_: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    """A counter with a value for each set of labels."""
    family = CounterMetricFamily(name, help_, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def gauge(name: str, help_: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    """A gauge, likewise."""
    family = GaugeMetricFamily(name, help_, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def sparingly(look: Callable[[], Sequence[Metric]]) -> Callable[[], Sequence[Metric]]:
    """Looks at a database every 15 seconds at most, however often it is asked; what fails has no values.

    One that does not answer holds up neither the other metrics nor more than one thread: after a second there are the
    values of the last look, or none if that is long ago.
    """
    return _Sparing(look).values


class _Sparing:
    def __init__(self, look: Callable[[], Sequence[Metric]]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ended.set()
        self._due = 0.0
        self._found: Sequence[Metric] = ()
        self._found_at = float("-inf")

    def values(self) -> Sequence[Metric]:
        with self._lock:
            if self._ended.is_set() and time.monotonic() >= self._due:
                self._ended.clear()
                threading.Thread(target=self._sample, name="halfmq-sample", daemon=True).start()
        self._ended.wait(_PATIENCE)
        with self._lock:
            return self._found if time.monotonic() - self._found_at < 2 * _SAMPLE_EVERY else ()

    def _sample(self) -> None:
        try:
            found = self._look()
        except Exception:  # The program itself tells of it.
            found = ()
        with self._lock:
            self._found, self._found_at = found, time.monotonic()
            self._due = self._found_at + _SAMPLE_EVERY
            self._ended.set()


class _Collected(Collector):
    def __init__(self, read: Reading) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        return self._read()

    def describe(self) -> Iterator[Metric]:
        return iter(())


@contextmanager
def served(address: str, read: Reading) -> Iterator[str]:
    """Answers `GET /metrics` meanwhile; yields the address.

    Args:
        address: host:port; port 0 takes a free one.
        read: reads all metrics.

    Raises:
        ConfigurationError: the address cannot be used.
    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigurationError("is host:port, such as 127.0.0.1:9465", field="metrics-listen")
    registry = CollectorRegistry()
    registry.register(_Collected(read))
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        raise ConfigurationError(f"{address} cannot be used: {error.strerror}", field="metrics-listen") from error
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
