"""Errors of the producer SDK, and the base that all errors of halfmq's SDKs share.

HalfmqError
├── ConfigurationError      settings that cannot work; also a ValueError; raised before anything is sent
├── ClientClosed            the client was used after close()
├── ListenerRequired        the call needs a TransactionListener and the producer has none
├── BrokerUnavailable       no broker answered before the retry deadline; repeat the call with its message_ids
├── BrokerFailed            a broker failed to process the request; its effect is unknown
├── RequestRefused          the broker refused the request or one item of it
│   ├── TransactionRefused  the broker refused because of the transaction's state
│   ├── DuplicateKey        another message has the dedup_key
│   └── RecallRefused       a message could not be recalled: it is in the log already, or was never committed
├── LocalTransactionRefused a check was answered before the local transaction began; it cannot happen any more
├── LocalTransactionEnded   the local transaction was ended inside its block
├── BatchRefused            some messages of send_many were refused; names them
├── BatchRecallRefused      some messages of one recall could not be recalled; names them
├── PrepareUnconfirmed      it is unknown whether the half messages were stored
└── VerdictUnconfirmed      it is unknown whether the verdict was recorded; a check will follow

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
    "LocalTransactionEnded",
    "LocalTransactionRefused",
    "PrepareUnconfirmed",
    "RecallRefused",
    "RequestRefused",
    "TransactionRefused",
    "VerdictUnconfirmed",
]

_MESSAGE_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:\.[0-9]+)?")

# N818 requires every name to end in "Error". These names describe the failure, as the documentation and the protocol
# do; only the base and ConfigurationError have the suffix.


class HalfmqError(Exception):
    """Base of all errors of halfmq clients.

    Attributes:
        code: The gRPC status code, or None when no broker was involved.
        reason: The broker's reason in one constant, such as ``TOPIC_NOT_FOUND``; empty when it gave none.
        field: The field at fault, such as ``messages[0].topic``; empty where no field is.
        transaction_id: The transaction concerned; empty if none.
        state: The transaction's state as the broker reported it, or None.
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
        """Creates the error; the arguments become attributes of the same names."""
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.field = field
        self.transaction_id = transaction_id
        self.state = state
        self.message_ids = tuple(message_ids)


class ConfigurationError(HalfmqError, ValueError):
    """An invalid setting; it is refused before anything is sent."""


class ClientClosed(HalfmqError):
    """The client was closed; create a new one."""


class ListenerRequired(HalfmqError):
    """The call needs a TransactionListener, and the producer has none."""


class LocalTransactionRefused(HalfmqError):
    """A check was answered with ROLLBACK before the local transaction began; run it again as a new transaction."""


class LocalTransactionEnded(HalfmqError):
    """The block's own code committed or rolled back the local transaction, which the end of the block does.

    The messages share the outcome of the transaction that had the fence's row.
    """


class BrokerUnavailable(HalfmqError):
    """No broker answered before the retry deadline; the call may still have taken effect.

    Calls that carry an id or name may be repeated unchanged. ``send`` creates a new id each time: repeat it with
    ``message_id=error.message_ids[0]``, and the message is stored once. Likewise ``send_many`` with the ``message_ids``
    of its error.
    """


class BrokerFailed(HalfmqError):
    """A broker failed while it processed a request; its log has the cause. Repeat as after BrokerUnavailable."""


class RequestRefused(HalfmqError):
    """The broker refused a request, or one item of it; repeating it unchanged gets the same answer."""


class TransactionRefused(RequestRefused):
    """The broker refused because of the transaction's state; ``state`` is the recorded outcome, if any."""


class DuplicateKey(RequestRefused):
    """Another message of the topic has the ``dedup_key``, or a half message without a verdict."""

    @property
    def owner(self) -> str:
        """Identity of the message or transaction that has the key, where the broker named it; empty otherwise."""
        named = [found for found in _MESSAGE_ID.findall(str(self)) if found.partition(".")[0] != self.transaction_id]
        return named[0] if named else ""


class RecallRefused(RequestRefused):
    """A message could not be recalled: it is in the log already, was never committed, or is unknown.

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
        """Creates the error from the outcome of each message, and from the ids under which they were sent."""
        super().__init__(message, message_ids=message_ids)
        self.outcomes = tuple(outcomes)

    def __reduce__(
        self,
    ) -> tuple[type[BatchRefused], tuple[str, tuple[LogPosition | HalfmqError, ...], tuple[str, ...]]]:
        """Preserves the outcomes when the error is pickled."""
        return (type(self), (str(self), self.outcomes, self.message_ids))


class BatchRecallRefused(HalfmqError):
    """Some messages of one ``recall`` were not recalled; the others were.

    Attributes:
        outcomes: One entry per message, in the order of the call: when it was recalled, or the error.
    """

    def __init__(self, message: str, outcomes: Sequence[datetime | HalfmqError]) -> None:
        """Creates the error from the outcome of each message."""
        super().__init__(message)
        self.outcomes = tuple(outcomes)

    def __reduce__(self) -> tuple[type[BatchRecallRefused], tuple[str, tuple[datetime | HalfmqError, ...]]]:
        """Preserves the outcomes when the error is pickled."""
        return (type(self), (str(self), self.outcomes))


class PrepareUnconfirmed(HalfmqError):
    """It is unknown whether half messages were stored; do not commit the local transaction that depends on them."""


class VerdictUnconfirmed(HalfmqError):
    """It is unknown whether the verdict was recorded; if it was not, the broker sends a check to the group."""
