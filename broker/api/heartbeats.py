"""Heartbeats on silent streams, by which clients distinguish a hung broker from a quiet one.

gRPC answers pings of a connection even when the event loop is blocked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from broker.errors import InvalidArgument
from broker.wire import times
from broker.wire.stream_writer import Heartbeat

if TYPE_CHECKING:
    from halfmq.v1.consumer_pb2 import Subscribe, Subscribed
    from halfmq.v1.transaction_pb2 import ProducerRegistered, RegisterProducer

Response = TypeVar("Response")

MOST_OFTEN = 1_000_000
MOST_SELDOM = 3600 * MOST_OFTEN


def agreed(
    wish: Subscribe | RegisterProducer, field: str, answer: Subscribed | ProducerRegistered, response: Response
) -> Heartbeat[Response] | None:
    """The heartbeat that a client requests, repeated in the answer to its first request; None: it requests none.

    Raises:
        InvalidArgument: the interval is out of bounds.
    """
    if not wish.HasField("heartbeat"):
        return None
    interval = times.micros(wish.heartbeat, field)
    if not MOST_OFTEN <= interval <= MOST_SELDOM:
        raise InvalidArgument("A heartbeat comes every second to every hour; leave it out to have none.", field=field)
    times.fill_duration(answer.heartbeat, interval)
    return Heartbeat(interval / MOST_OFTEN, response)
