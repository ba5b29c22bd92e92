"""Maps the broker's errors to gRPC: one table, rich details, and no internals for unknown errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from broker import errors
from halfmq.v1 import message_pb2 as pb

if TYPE_CHECKING:
    from typing import Any

DOMAIN = "halfmq"
REASON_KEY = "halfmq-reason"
RETRY_KEY = "halfmq-retry-ms"

CODES: tuple[tuple[type[errors.BrokerError], grpc.StatusCode], ...] = (
    (errors.InvalidArgument, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (errors.Refused, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.StorageUnavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.StorageRejected, grpc.StatusCode.INTERNAL),
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (errors.Denied, grpc.StatusCode.PERMISSION_DENIED),
    (errors.ConfigurationError, grpc.StatusCode.INTERNAL),
)


def code_of(error: errors.BrokerError) -> grpc.StatusCode:
    """The gRPC code of an error."""
    return next(code for kind, code in CODES if isinstance(error, kind))


def item_error(error: errors.BrokerError) -> pb.ItemError:
    """An item's error in an answer with many items."""
    return pb.ItemError(code=code_of(error).value[0], reason=error.reason, message=error.message, field=error.field)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as a gRPC status: code, text, and details for programs."""

    code: grpc.StatusCode
    text: str
    metadata: tuple[tuple[str, str | bytes], ...] = ()

    def tell(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Sets it as the call's status, once its servicer returns.

        Not by `context.abort`: the call would keep the raised exception, and the exception the call's frames with the
        request. Only the garbage collector would free them.
        """
        context.set_code(self.code)
        context.set_details(self.text)
        context.set_trailing_metadata(self.metadata)


def refusal_of(error: errors.BrokerError) -> Refusal:
    """The code, text and details of an error."""
    code = code_of(error)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    if isinstance(error, errors.InvalidArgument) and error.position is not None:
        info.metadata["position"] = str(error.position)
    if isinstance(error, errors.OffsetLost):
        info.metadata["offset"] = str(error.first)
    details: list[Any] = [info]
    metadata: list[tuple[str, str | bytes]] = [(REASON_KEY, error.reason)]
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, errors.Overloaded | errors.StorageUnavailable):
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(int(error.retry_after * 1000))
        details.append(retry)
        metadata.append((RETRY_KEY, str(int(error.retry_after * 1000))))
    text = f"{error.field}: {error.message}" if error.field else error.message
    status = status_pb2.Status(code=code.value[0], message=text)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    rich = rpc_status.to_status(status)
    return Refusal(code, text, (*(rich.trailing_metadata or ()), *metadata))
