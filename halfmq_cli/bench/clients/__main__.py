"""One client process of a benchmark: `python -m halfmq_cli.bench.clients ROLE ENDPOINT OPTIONS`, options as JSON.

It reports when it is ready and then answers requests, a line of JSON each; the roles document them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from typing import TYPE_CHECKING, Any

from halfmq_cli.bench.clients import consumers, idle_streams, kafka_bridge, kafka_consumer, producers, rivals, unary

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def _place_orders(endpoint: str, **options: Any) -> Coroutine[Any, Any, None]:
    from halfmq_cli.bench.clients.shop.shop import place_orders  # noqa: PLC0415 - SQLAlchemy is slow to load

    return place_orders(endpoint, **options)


ROLES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "transaction producer": producers.in_transactions,
    "producer": producers.one_by_one,
    "timed producer": producers.on_schedule,
    "scheduling producer": producers.ahead_of_time,
    "consumer": consumers.follow,
    "timed consumer": consumers.note_arrivals,
    "draining consumer": consumers.drain,
    "unary producer": unary.by_both_protocols,
    "polite producer": rivals.at_a_steady_rate,
    "greedy producer": rivals.without_waiting,
    "official client": unary.official,
    "idle consumers": idle_streams.wait,
    "shop": _place_orders,
    "bridge": kafka_bridge.work,
    "kafka consumer": kafka_consumer.follow,
}


def main() -> None:
    """Runs one client."""
    role, endpoint, options = sys.argv[1:]
    gc.freeze()  # As any busy service may do once it is loaded; see docs/sdk.md.
    gc.set_threshold(50_000, 50, 100)
    asyncio.run(ROLES[role](endpoint, **json.loads(options)))


if __name__ == "__main__":
    main()
