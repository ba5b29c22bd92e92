"""What clients did with brokers, and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfmq_cli.bench.report import micros_each, percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfmq_cli.bench.processes import BrokerProcess, Client


class Measured:
    """Some clients' work in all rounds, and its cost."""

    def __init__(self) -> None:
        """Nothing is measured yet."""
        self._done = 0
        self._seconds = self._broker_cpu = self._client_cpu = 0.0
        self._times: list[float] = []

    def take(self, brokers: Sequence[BrokerProcess], clients: Sequence[Client], request: list[Any]) -> list[int]:
        """Adds one round; returns the number of operations of each client."""
        before = sum(broker.cpu_seconds() for broker in brokers)
        answers = together(clients, request)
        self._broker_cpu += sum(broker.cpu_seconds() for broker in brokers) - before
        self._seconds += max(answer["seconds"] for answer in answers)
        for answer in answers:
            self._client_cpu += answer["cpu_s"]
            self._times += answer["ms"]
        done = [int(answer["done"]) for answer in answers]
        self._done += sum(done)
        return done

    @property
    def per_second(self) -> float:
        """Operations per second."""
        return self._done / self._seconds

    def figures(self) -> dict[str, float]:
        """All figures."""
        return {
            "per_s": round(self.per_second, 1),
            "p50_ms": round(percentile(self._times, 50), 3),
            "p99_ms": round(percentile(self._times, 99), 3),
            "broker_cpu_us": micros_each(self._broker_cpu, max(1, self._done)),
            "client_cpu_us": micros_each(self._client_cpu, max(1, self._done)),
        }


def together(clients: Sequence[Client], request: list[Any]) -> list[dict[str, Any]]:
    """The clients' answers to a request that all get at the same time."""
    for client in clients:
        client.tell(request)
    return [client.hear() for client in clients]
