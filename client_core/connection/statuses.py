"""Classification of gRPC failures for clients of this protocol.

Every unary call of the protocol is idempotent by its ids, so connection failures and transient states of the broker are
retried, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from client_core.connection.details import DETAILS_KEY, field_and_reason, retry_delay
from client_core.errors import BrokerFailed, BrokerUnavailable, DuplicateKey, HalfmqError, RequestRefused

if TYPE_CHECKING:
    from halfmq.v1 import message_pb2 as pb

__all__ = [
    "HOPELESS",
    "as_halfmq_error",
    "as_item_error",
    "is_passing_item",
    "is_retryable",
    "is_unreachable",
    "retry_hint",
]

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

_PASSING = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
HOPELESS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
    }
)
"""The stream's request is invalid; no other broker of the same database would accept it."""
# After any other failure the broker has certainly done nothing.
_OUTCOME_UNKNOWN = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
# Another message owns the key permanently, or until its transaction has a verdict.
_DUPLICATES = frozenset({"DEDUP_KEY_TAKEN", "DEDUP_KEY_PENDING"})
# gRPC reports some broken connections as UNKNOWN, distinguishable from a failed servicer only by the text.
_LOST_CONNECTION_TEXTS = ("stream removed", "connection reset", "socket closed", "connection closed", "broken pipe")


def is_retryable(error: BaseException) -> bool:
    """Whether the same request may succeed when it is retried."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return False
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # gRPC's own refusal of a message beyond the size limit; retrying cannot help.
        return "larger than max" not in (error.details() or "")
    return error.code() in _PASSING or _connection_was_lost(error)


def is_unreachable(error: grpc.aio.AioRpcError) -> bool:
    """Whether another broker is the better choice for the next attempt."""
    away = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return error.code() in away or _connection_was_lost(error)


def _connection_was_lost(error: grpc.aio.AioRpcError) -> bool:
    # A local cancellation never arrives as an AioRpcError: this one was sent by a server that is shutting down.
    if error.code() is grpc.StatusCode.CANCELLED:
        return True
    if error.code() is not grpc.StatusCode.UNKNOWN:
        return False
    details = (error.details() or "").lower()
    return any(text in details for text in _LOST_CONNECTION_TEXTS)


def retry_hint(error: BaseException) -> float | None:
    """Seconds after which the broker asks for a retry, if it does.

    They are in the trailing metadata ``halfmq-retry-ms``, and in the details as RetryInfo.
    """
    if not isinstance(error, grpc.aio.AioRpcError):
        return None
    try:
        milliseconds = float(_trailing(error, "halfmq-retry-ms"))
    except ValueError:
        return retry_delay(_trailing(error, DETAILS_KEY))
    return max(0.0, milliseconds / 1000) if milliseconds < float("inf") else None


def as_halfmq_error(error: grpc.aio.AioRpcError) -> HalfmqError:
    """Converts a failed call to an error of the SDK."""
    code, details = error.code(), error.details() or "no details"
    field, reason = field_and_reason(_trailing(error, DETAILS_KEY))
    reason = reason or _trailing(error, "halfmq-reason").decode("utf-8", "replace")
    return _error(code, is_retryable(error), f"{code.name}: {_named(field, details)}", reason, field, "")


def as_item_error(error: pb.ItemError, transaction_id: str = "") -> HalfmqError:
    """Converts the failure of one item to an error of the SDK."""
    code = _CODES.get(error.code, grpc.StatusCode.UNKNOWN)
    text = _named(error.field, error.message or error.reason or code.name)
    return _error(code, code in _PASSING, text, error.reason, error.field, transaction_id)


def is_passing_item(error: pb.ItemError) -> bool:
    """Whether the same item may succeed when it is retried."""
    return _CODES.get(error.code) in _PASSING


def _named(field: str, text: str) -> str:
    """The text with the field at fault before it."""
    return f"{field}: {text}" if field and field not in text else text


def _error(
    code: grpc.StatusCode, passing: bool, text: str, reason: str, field: str, transaction_id: str
) -> HalfmqError:
    kind: type[HalfmqError]
    if passing:
        kind = BrokerUnavailable
        text = f"no broker could do it before the retry deadline ({text}); check the brokers, then repeat the call"
    elif code in _OUTCOME_UNKNOWN:
        kind = BrokerFailed
        text = f"the broker failed over the request ({text}); look into its log, then repeat the call"
    else:
        kind = DuplicateKey if reason in _DUPLICATES else RequestRefused
    return kind(text, code=code, reason=reason, field=field, transaction_id=transaction_id)


def _trailing(error: grpc.aio.AioRpcError, key: str) -> bytes:
    for name, value in error.trailing_metadata() or ():
        if name == key:
            return value.encode() if isinstance(value, str) else value
    return b""
