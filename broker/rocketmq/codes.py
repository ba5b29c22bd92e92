"""Maps the broker's errors to RocketMQ's codes."""

from __future__ import annotations

from typing import Any

import grpc

from broker import errors
from broker.rocketmq.protocol import Code, definition_pb2
from broker.wire.status import code_of as code_of_grpc


class BadRequest(errors.InvalidArgument):
    """A bad request with a specific RocketMQ code."""

    def __init__(self, message: str, code: int, field: str) -> None:
        """Takes the text for people, RocketMQ's code, and the field at fault."""
        super().__init__(message, field=field)
        self.code = code

    def within(self, prefix: str) -> BadRequest:
        """The same error with the field prefixed by its message."""
        return BadRequest(self.message, self.code, f"{prefix}.{self.field}")


class Unsupported(errors.BrokerError):
    """A part of the protocol that halfmq does not support."""

    def __init__(self, message: str) -> None:
        """Takes the unsupported feature, and the alternative."""
        super().__init__(message, reason="UNSUPPORTED")


class Unauthorized(errors.BrokerError):
    """A call without a valid signature."""

    def __init__(self, message: str) -> None:
        """Takes the error text."""
        super().__init__(message, reason="UNAUTHORIZED", field="authorization")


_BY_REASON = {
    "BODY_TOO_LARGE": Code.MESSAGE_BODY_TOO_LARGE,
    "PROPERTIES_TOO_LARGE": Code.MESSAGE_PROPERTIES_TOO_LARGE,
    "FILTER_INVALID": Code.ILLEGAL_FILTER_EXPRESSION,
    "FILTER_TOO_COSTLY": Code.ILLEGAL_FILTER_EXPRESSION,
    "TOPIC_NOT_FOUND": Code.TOPIC_NOT_FOUND,
    "GROUP_NOT_FOUND": Code.CONSUMER_GROUP_NOT_FOUND,
    "TRANSACTION_NOT_FOUND": Code.INVALID_TRANSACTION_ID,
    "OFFSET_LOST": Code.ILLEGAL_OFFSET,
    "DELAY_TOO_LONG": Code.ILLEGAL_DELIVERY_TIME,
}

_BY_FIELD = {
    "topic": Code.ILLEGAL_TOPIC,
    "topics": Code.ILLEGAL_TOPIC,
    "name": Code.ILLEGAL_TOPIC,
    "body": Code.MESSAGE_BODY_EMPTY,
    "tag": Code.ILLEGAL_MESSAGE_TAG,
    "keys": Code.ILLEGAL_MESSAGE_KEY,
    "message_group": Code.ILLEGAL_MESSAGE_GROUP,
    "properties": Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    "delivery_timestamp": Code.ILLEGAL_DELIVERY_TIME,
    "first_check_delay": Code.BAD_REQUEST,
    "priority": Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    "consumer_group": Code.ILLEGAL_CONSUMER_GROUP,
    "group": Code.ILLEGAL_CONSUMER_GROUP,
    "producer_group": Code.ILLEGAL_TOPIC,
    "transaction_id": Code.INVALID_TRANSACTION_ID,
    "message_id": Code.ILLEGAL_MESSAGE_ID,
    "receipt_handle": Code.INVALID_RECEIPT_HANDLE,
    "invisible_duration": Code.ILLEGAL_INVISIBLE_TIME,
    "duration": Code.ILLEGAL_INVISIBLE_TIME,
    "lease_duration": Code.ILLEGAL_INVISIBLE_TIME,
    "delay": Code.ILLEGAL_INVISIBLE_TIME,
    "offset": Code.ILLEGAL_OFFSET,
    "wait": Code.ILLEGAL_POLLING_TIME,
}

_BY_KIND: tuple[tuple[type[errors.BrokerError], int], ...] = (
    (Unauthorized, Code.UNAUTHORIZED),
    (errors.Unauthenticated, Code.UNAUTHORIZED),
    (errors.Denied, Code.FORBIDDEN),
    (Unsupported, Code.UNSUPPORTED),
    (errors.StaleReceipt, Code.INVALID_RECEIPT_HANDLE),
    (errors.VerdictConflict, Code.INVALID_TRANSACTION_ID),
    (errors.InvalidArgument, Code.BAD_REQUEST),
    (errors.NotFound, Code.NOT_FOUND),
    (errors.Refused, Code.PRECONDITION_FAILED),
    (errors.AlreadyExists, Code.PRECONDITION_FAILED),
    (errors.Overloaded, Code.TOO_MANY_REQUESTS),
    (errors.StorageUnavailable, Code.HA_NOT_AVAILABLE),
)


def grpc_code_of(error: Exception) -> grpc.StatusCode:
    """The gRPC code of an error that ends a stream."""
    if isinstance(error, Unauthorized):
        return grpc.StatusCode.UNAUTHENTICATED
    if isinstance(error, Unsupported):
        return grpc.StatusCode.UNIMPLEMENTED
    return code_of_grpc(error) if isinstance(error, errors.BrokerError) else grpc.StatusCode.INTERNAL


def code_of(error: errors.BrokerError) -> int:
    """RocketMQ's code of an error."""
    if isinstance(error, BadRequest):
        return error.code
    if error.reason in _BY_REASON:
        return int(_BY_REASON[error.reason])
    if isinstance(error, errors.InvalidArgument):
        last = error.field.rpartition(".")[2].partition("[")[0]
        return int(_BY_FIELD.get(last, Code.BAD_REQUEST))
    return next((int(code) for kind, code in _BY_KIND if isinstance(error, kind)), int(Code.INTERNAL_SERVER_ERROR))


def status_of(error: errors.BrokerError) -> Any:
    """An error for RocketMQ's clients. Most of them show only the number of its code, so the text includes the name."""
    code = code_of(error)
    field = f"{error.field}: " if error.field else ""
    return definition_pb2.Status(code=code, message=f"{Code.Name(code)}: {field}{error.message}")


OK = definition_pb2.Status(code=Code.OK, message="OK")


def status(code: int, message: str = "") -> Any:
    """A status."""
    return definition_pb2.Status(code=code, message=message or Code.Name(code))
