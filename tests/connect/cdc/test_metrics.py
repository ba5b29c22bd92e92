"""What a running subscription tells, for metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from connect.cdc.sources import PATIENCE, Capture, Source, Topic, settings
from halfmq_connect.cli.metrics import of_cdc

if TYPE_CHECKING:
    from collections.abc import Callable

ORDERS = "CREATE TABLE shop.orders (id INT PRIMARY KEY, item VARCHAR(40))"


def values(running: Capture) -> dict[str, float]:
    """Values by name."""
    return {each.name: each.value for family in of_cdc("shop", running.capture)() for each in family.samples}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_subscription_counts_what_it_publishes_and_tells_how_late(
    source: Source, endpoint: str, topic: Topic
) -> None:
    source.run(ORDERS)
    with Capture(settings(endpoint, source.host)) as running:
        assert values(running)["halfmq_cdc_following"] == 1
        before = values(running)["halfmq_cdc_transactions_total"]
        assert "halfmq_cdc_delay_seconds" not in values(running)
        began = time.time()
        source.run("INSERT INTO shop.orders VALUES (1, 'apple'), (2, 'pear')")
        topic.rows(2)
        until(lambda: values(running)["halfmq_cdc_messages_total"] == 2)
        found = values(running)
        assert found["halfmq_cdc_transactions_total"] == before + 1
        assert found["halfmq_cdc_last_epoch_timestamp_seconds"] >= began
        # MariaDB tells whole seconds.
        assert 0 <= found["halfmq_cdc_delay_seconds"] < time.time() - began + 1
        assert found["halfmq_cdc_interruptions_total"] == 0
    assert values(running)["halfmq_cdc_following"] == 0
