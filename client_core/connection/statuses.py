"""What gRPC's failures mean to a client of this protocol, in one place.

Every unary call of the protocol is idempotent by the ids that it carries, so whatever may be an accident of the
connection or a passing state of the broker is retried, and nothing else is.
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
"""The stream itself is wrong; no other broker of the same database would take it."""
# After any other failure the broker is sure to have done nothing.
_OUTCOME_UNKNOWN = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
# Another message has the key for good, or as long as its transaction has no verdict.
_DUPLICATES = frozenset({"DEDUP_KEY_TAKEN", "DEDUP_KEY_PENDING"})
# gRPC reports some broken connections as UNKNOWN, with nothing but the text to tell them from a failed servicer.
_LOST_CONNECTION_TEXTS = ("stream removed", "connection reset", "socket closed", "connection closed", "broken pipe")


def is_retryable(error: BaseException) -> bool:
    """Whether the same request may succeed when it is sent again."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return False
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # gRPC's own refusal of a message beyond the size limit; it would be refused forever.
        return "larger than max" not in (error.details() or "")
    return error.code() in _PASSING or _connection_was_lost(error)


def is_unreachable(error: grpc.aio.AioRpcError) -> bool:
    """Whether another broker is the better choice for the next attempt."""
    away = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return error.code() in away or _connection_was_lost(error)


def _connection_was_lost(error: grpc.aio.AioRpcError) -> bool:
    # A cancellation of our own never arrives as an AioRpcError: this one was sent by a server that is going away.
    if error.code() is grpc.StatusCode.CANCELLED:
        return True
    if error.code() is not grpc.StatusCode.UNKNOWN:
        return False
    details = (error.details() or "").lower()
    return any(text in details for text in _LOST_CONNECTION_TEXTS)


def retry_hint(error: BaseException) -> float | None:
    """Seconds after which the broker asks to be retried, if it says so.

    It does in the trailing metadata ``halfmq-retry-ms``, and in the details as RetryInfo.
    """
    if not isinstance(error, grpc.aio.AioRpcError):
        return None
    try:
        milliseconds = float(_trailing(error, "halfmq-retry-ms"))
    except ValueError:
        return retry_delay(_trailing(error, DETAILS_KEY))
    return max(0.0, milliseconds / 1000) if milliseconds < float("inf") else None


def as_halfmq_error(error: grpc.aio.AioRpcError) -> HalfmqError:
    """Says a failed call in the SDK's own errors."""
    code, details = error.code(), error.details() or "no details"
    field, reason = field_and_reason(_trailing(error, DETAILS_KEY))
    reason = reason or _trailing(error, "halfmq-reason").decode("utf-8", "replace")
    return _error(code, is_retryable(error), f"{code.name}: {details}", reason, field, "")


def as_item_error(error: pb.ItemError, transaction_id: str = "") -> HalfmqError:
    """Says the failure of one item in the SDK's own errors."""
    code = _CODES.get(error.code, grpc.StatusCode.UNKNOWN)
    text = error.message or error.reason or code.name
    return _error(code, code in _PASSING, text, error.reason, error.field, transaction_id)


def is_passing_item(error: pb.ItemError) -> bool:
    """Whether the same item may succeed when it is sent again."""
    return _CODES.get(error.code) in _PASSING


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
