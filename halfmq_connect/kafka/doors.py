"""What is checked before anything is carried; waits for systems that do not answer."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import KafkaException

from client_core.connection import Connection, RetryConfig
from client_core.errors import BrokerFailed, BrokerUnavailable
from halfmq_connect.kafka.cluster import unavailable
from halfmq_connect.kafka.ending import Ending
from halfmq_connect.kafka.errors import BridgeError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from client_core.connection import Endpoint, TlsConfig
    from halfmq_connect.kafka.plan import Plan
    from halfmq_connect.outages import Outage

__all__ = ["existing_topics", "hurried", "once", "patiently"]

ResultT = TypeVar("ResultT")

_LASTED = 60.0
"""Seconds after which work that failed had begun well: the pauses begin anew."""


def hurried(endpoint: Endpoint, tls: TlsConfig | None) -> Connection:
    """How to reach halfmq: a call that gets no answer ends soon, and whoever made it waits, or stops if it is to.

    Raises:
        ConfigurationError: The endpoint, or TLS, cannot work.
    """
    given = Connection.of(endpoint, tls=tls)
    return replace(given, retry=RetryConfig(attempt_timeout=20.0, deadline=20.0))


def patiently(work: Callable[[], ResultT], kafka: Outage, halfmq: Outage, stopping: threading.Event) -> ResultT | None:
    """Does something that may be repeated, until both systems answer; None if it is to stop meanwhile.

    Raises:
        BridgeError: Kafka refuses.
        HalfmqError: halfmq refuses.
    """
    failures = 0
    while not stopping.is_set():
        began = time.monotonic()
        try:
            result = work()
        except Ending:
            return None
        except KafkaException as raised:
            if not unavailable(raised):
                msg = f"Kafka refuses: {raised.args[0]}"
                raise BridgeError(msg) from raised
            kafka.note(raised)
        except (BrokerUnavailable, BrokerFailed) as error:
            halfmq.note(error)
        else:
            if not stopping.is_set():  # Else it may have ended because of that.
                kafka.over()
                halfmq.over()
            return result
        failures = 1 if time.monotonic() - began >= _LASTED else failures + 1
        stopping.wait(RetryConfig(initial_backoff=0.2).backoff(failures))
    return None


def existing_topics(plan: Plan) -> None:
    """Checks that the topics of both sides and the group exist, and creates those of Kafka where that is wanted.

    Raises:
        ConfigurationError: A topic of Kafka does not exist, or a group of halfmq.
        RequestRefused: A topic of halfmq does not exist.
    """
    queues = {topic: len(plan.queue_offsets(topic)) for topic in plan.routes}
    if plan.settings.too_large_to is not None:
        plan.queue_offsets(plan.settings.too_large_to)
    plan.progress.check(next(iter(plan.routes)))
    if plan.settings.create_topics:
        there = plan.cluster.names()
        for topic, target in plan.routes.items():
            if target not in there:
                plan.cluster.create(target, queues[topic])
    plan.cluster.topics(set(plan.routes.values()))


def once(work: Callable[[], ResultT]) -> ResultT:
    """Does something, without waiting for Kafka.

    Raises:
        BridgeError: Kafka does not answer, or refuses.
    """
    try:
        return work()
    except KafkaException as raised:
        msg = f"Kafka does not answer, or refuses: {raised.args[0]}"
        raise BridgeError(msg) from raised
