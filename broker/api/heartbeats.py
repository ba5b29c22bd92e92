"""What is said on a stream where there is nothing else to say: so clients know a broker that hangs from a quiet one.

gRPC answers pings of a connection also where the event loop behind it stands still.
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
    """The heartbeat that a client wishes for, noted in the answer to its first request; None: it wants none.

    Raises:
        InvalidArgument: it is too often or too seldom.
    """
    if not wish.HasField("heartbeat"):
        return None
    interval = times.micros(wish.heartbeat, field)
    if not MOST_OFTEN <= interval <= MOST_SELDOM:
        raise InvalidArgument("A heartbeat comes every second to every hour; leave it out to have none.", field=field)
    times.fill_duration(answer.heartbeat, interval)
    return Heartbeat(interval / MOST_OFTEN, response)
