"""Messages as consumers get them, without a broker."""

from __future__ import annotations

from client_core.ids import new_id
from client_core.stored import StoredMessage
from halfmq.v1 import message_pb2 as pb


def delivered(
    body: str = "lamp", *, topic: str = "payments", offset: int = 0, dedup_key: str = "", **properties: str
) -> StoredMessage:
    """A message with an id of its own."""
    return StoredMessage(
        pb.LogMessage(
            topic=topic,
            queue=0,
            offset=offset,
            message_id=new_id(),
            body=body.encode(),
            dedup_key=dedup_key,
            properties=properties,
        )
    )
