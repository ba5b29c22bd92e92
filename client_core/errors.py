"""Errors of the producer SDK, and the base that all errors of halfmq's SDKs share.

HalfmqError
├── ConfigurationError      settings that cannot work; also a ValueError; raised before anything is sent
├── ClientClosed            the client was used after close()
├── ListenerRequired        the call needs a TransactionListener and the producer has none
├── BrokerUnavailable       no broker answered before the retry deadline; repeat the call with its message_ids
├── BrokerFailed            a broker failed over the request; nobody knows how far it came
├── RequestRefused          the broker refused the request or one item of it
│   ├── TransactionRefused  the broker refused because of the transaction's state
│   ├── DuplicateKey        another message has the dedup_key
│   └── RecallRefused       a message could not be taken back: it is in the log already, or was never committed
├── BatchRefused            some messages of send_many were refused; says which
├── BatchRecallRefused      some messages of one recall could not be taken back; says which
├── PrepareUnconfirmed      nobody knows whether the half messages were stored
└── VerdictUnconfirmed      nobody knows whether the verdict was recorded; the broker will ask the listener

Every error carries the same fields, empty where they do not apply, so that programs need not read the message.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import grpc

    from client_core.message import LogPosition
    from client_core.states import TransactionState

__all__ = [
    "BatchRecallRefused",
    "BatchRefused",
    "BrokerFailed",
    "BrokerUnavailable",
    "ClientClosed",
    "ConfigurationError",
    "DuplicateKey",
    "HalfmqError",
    "ListenerRequired",
    "PrepareUnconfirmed",
    "RecallRefused",
    "RequestRefused",
    "TransactionRefused",
    "VerdictUnconfirmed",
]

_MESSAGE_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:\.[0-9]+)?")

# N818 wants every name to end in "Error". These names say what happened, as the documentation and the protocol do;
# only the base and ConfigurationError, which say no more than that, carry the suffix.


class HalfmqError(Exception):
    """Something that a halfmq client could not do.

    Attributes:
        code: The gRPC status code, or None when no broker was involved.
        reason: The broker's reason in one constant, such as ``TOPIC_NOT_FOUND``; empty when it gave none.
        field: The field at fault, such as ``messages[0].topic``; empty where no field is.
        transaction_id: The transaction it is about; empty when it is about none.
        state: Where the broker says the transaction stands, or None when it did not say.
        message_ids: Ids under which the messages of the call were sent, in their order; empty for other calls. Sent
            again under them, as ``message_id``, each is stored once.
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        reason: str = "",
        field: str = "",
        transaction_id: str = "",
        state: TransactionState | None = None,
        message_ids: Sequence[str] = (),
    ) -> None:
        """Makes the error; the arguments are kept as attributes of the same names."""
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.field = field
        self.transaction_id = transaction_id
        self.state = state
        self.message_ids = tuple(message_ids)


class ConfigurationError(HalfmqError, ValueError):
    """A setting that cannot work; it is refused before anything is sent."""


class ClientClosed(HalfmqError):
    """The client was closed; make a new one."""


class ListenerRequired(HalfmqError):
    """The call runs a TransactionListener and the producer was made without one."""


class BrokerUnavailable(HalfmqError):
    """No broker answered before the retry deadline; what the call was to do may have happened all the same.

    Calls that name what they are about may be repeated as they are. A ``send`` makes a new id each time: repeat it with
    ``message_id=error.message_ids[0]``, and it is one message. So do ``send_many`` with ``message_ids`` of its error.
    """


class BrokerFailed(HalfmqError):
    """A broker failed while it handled a request; its log says why. It is repeated as after BrokerUnavailable."""


class RequestRefused(HalfmqError):
    """The broker refused a request, or one item of it; repeating it unchanged gives the same answer."""


class TransactionRefused(RequestRefused):
    """The broker refused because of the transaction's state; ``state`` is the recorded outcome, if any."""


class DuplicateKey(RequestRefused):
    """Another message of the topic has the ``dedup_key``, or half a message that may still be dropped has it."""

    @property
    def owner(self) -> str:
        """Identity of the message or transaction that has the key, where the broker named it; empty otherwise."""
        named = [found for found in _MESSAGE_ID.findall(str(self)) if found.partition(".")[0] != self.transaction_id]
        return named[0] if named else ""


class RecallRefused(RequestRefused):
    """A message could not be taken back: it is in the log already, was never committed, or is not known.

    Attributes:
        message_id: The message.
    """

    message_id: str = ""


class BatchRefused(HalfmqError):
    """Some messages of one ``send_many`` were not stored; the others were.

    Attributes:
        outcomes: One entry per message, in the order of the call: its position in the log, or the error.
    """

    def __init__(
        self, message: str, outcomes: Sequence[LogPosition | HalfmqError], message_ids: Sequence[str] = ()
    ) -> None:
        """Makes the error from the outcome of each message, and from the ids under which they were sent."""
        super().__init__(message, message_ids=message_ids)
        self.outcomes = tuple(outcomes)

    def __reduce__(
        self,
    ) -> tuple[type[BatchRefused], tuple[str, tuple[LogPosition | HalfmqError, ...], tuple[str, ...]]]:
        """Keeps the outcomes when the error travels between processes."""
        return (type(self), (str(self), self.outcomes, self.message_ids))


class BatchRecallRefused(HalfmqError):
    """Some messages of one ``recall`` were not taken back; the others were.

    Attributes:
        outcomes: One entry per message, in the order of the call: when it was recalled, or the error.
    """

    def __init__(self, message: str, outcomes: Sequence[datetime | HalfmqError]) -> None:
        """Makes the error from the outcome of each message."""
        super().__init__(message)
        self.outcomes = tuple(outcomes)

    def __reduce__(self) -> tuple[type[BatchRecallRefused], tuple[str, tuple[datetime | HalfmqError, ...]]]:
        """Keeps the outcomes when the error travels between processes."""
        return (type(self), (str(self), self.outcomes))


class PrepareUnconfirmed(HalfmqError):
    """It is unknown whether half messages were stored; do not commit the local transaction that depends on them."""


class VerdictUnconfirmed(HalfmqError):
    """It is unknown whether the verdict was recorded; if it was not, the broker asks the group's listener."""
