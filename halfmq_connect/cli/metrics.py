"""Metrics of a command, if they are asked for, and what each of them tells."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from client_core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from halfmq_connect.cdc.run import ChangeCapture
    from halfmq_connect.kafka import KafkaBridge, KafkaSource
    from producer_sdk.outbox import Outbox
    from producer_sdk.outbox.relay import Relay

MetricsListen: TypeAlias = Annotated[
    str | None, typer.Option("--metrics-listen", help="Address and port for metrics: GET /metrics [none].")
]


@contextmanager
def metrics_at(address: str | None, make: Callable[[], Callable[[], Iterator[Metric]]]) -> Iterator[None]:
    """Answers for metrics meanwhile, and writes the address on standard error; nothing without one.

    Args:
        address: host:port.
        make: makes what reads them.

    Raises:
        ConfigurationError: the address cannot be used, or prometheus-client is missing.
    """
    if address is None:
        yield
        return
    try:
        from halfmq_connect.metrics import served  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        msg = f"metrics need {error.name}: pip install prometheus-client"
        raise ConfigurationError(msg, field="metrics-listen") from error
    with served(address, make()) as at:
        sys.stderr.write(f"metrics on {at}\n")
        sys.stderr.flush()
        yield


def of_relay(outbox: Outbox, relay: Relay) -> Callable[[], Iterator[Metric]]:
    """What a relay tells; the one that has the turn looks at the outbox, so that sums over relays are right."""
    from halfmq_connect.metrics import counter, gauge, sparingly  # noqa: PLC0415 - of an extra

    def look() -> list[Metric]:
        found = outbox.backlog()
        counts = {(state.value,): float(count) for state, count in found.counts.items()}
        return [
            gauge("halfmq_outbox_messages", "Messages of the outbox that are not sent.", ["state"], counts),
            gauge(
                "halfmq_outbox_oldest_seconds",
                "Age of the oldest one that is to be sent.",
                [],
                {(): found.oldest_age or 0.0},
            ),
        ]

    sample = sparingly(look)

    def read() -> Iterator[Metric]:
        outcomes = {(name,): float(count) for name, count in relay.counts.items()}
        help_ = "Messages by what became of them: sent, failed (they are sent again), error."
        yield counter("halfmq_relay_messages_total", help_, ["outcome"], outcomes)
        yield counter("halfmq_relay_turns_total", "How often it took the turn.", [], {(): relay.turns})
        yield gauge("halfmq_relay_has_turn", "Whether it is the relay that sends.", [], {(): relay.has_turn})
        yield gauge(
            "halfmq_relay_failures",
            "Calls of the target that failed since the last good one.",
            [],
            {(): relay.failures},
        )
        if relay.has_turn:
            yield from sample()

    return read


def of_cdc(name: str, capture: ChangeCapture) -> Callable[[], Iterator[Metric]]:
    """What cdc tells."""
    from halfmq_connect.metrics import counter, gauge  # noqa: PLC0415 - of an extra

    label, key = ["subscription"], (name,)

    def read() -> Iterator[Metric]:
        done = capture.progress
        yield counter("halfmq_cdc_transactions_total", "Transactions published.", label, {key: done.transactions})
        yield counter("halfmq_cdc_messages_total", "Messages published.", label, {key: done.messages})
        yield counter("halfmq_cdc_epochs_total", "Epochs committed.", label, {key: done.epochs})
        help_ = "Sessions that ended because a system did not answer."
        yield counter("halfmq_cdc_interruptions_total", help_, label, {key: capture.interruptions})
        help_ = "Whether the log is followed; not while tables are copied or a system does not answer."
        yield gauge("halfmq_cdc_following", help_, label, {key: capture.following.is_set()})
        help_ = "Time from the commit of the last published transaction to its publication."
        yield gauge("halfmq_cdc_delay_seconds", help_, label, {} if done.delay is None else {key: done.delay})
        help_ = "When something was last published, in seconds since 1970."
        at = {key: done.last_at} if done.last_at else {}
        yield gauge("halfmq_cdc_last_epoch_timestamp_seconds", help_, label, at)

    return read


def of_bridge(name: str, direction: str, bridge: KafkaBridge | KafkaSource) -> Callable[[], Iterator[Metric]]:
    """What a bridge tells."""
    from halfmq_connect.metrics import counter, gauge, sparingly  # noqa: PLC0415 - of an extra

    labels, key = ["bridge", "direction"], (name, direction)

    def look() -> list[Metric]:
        left = bridge.lag()
        help_ = "Messages of this replica's queues or partitions that are not carried yet."
        return [gauge("halfmq_bridge_lag_messages", help_, labels, {} if left is None else {key: float(left)})]

    sample = sparingly(look)

    def read() -> Iterator[Metric]:
        yield counter(
            "halfmq_bridge_messages_total", "Messages carried by this replica.", labels, {key: bridge.carried}
        )
        yield gauge(
            "halfmq_bridge_system_up",
            "Whether a system answers, as far as is known.",
            [*labels, "system"],
            {(*key, system): not is_away for system, is_away in bridge.outages().items()},
        )
        yield from sample()

    return read
