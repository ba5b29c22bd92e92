"""The rich details of a refusal (google.rpc.Status): the field at fault, the reason as a constant, when to try again.

The messages are declared here as far as they are read, because the package that contains them is a dependency of the
broker only. Field numbers are those of google/rpc/status.proto and error_details.proto.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

__all__ = ["DETAILS_KEY", "field_and_reason", "retry_delay"]

DETAILS_KEY = "grpc-status-details-bin"
"""The trailing metadata that carries them."""

_STRING, _BYTES, _MESSAGE, _INT64, _INT32 = (
    descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
    descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
)
_REPEATED = {"details", "field_violations"}
_FIELDS = {
    "Status": [("details", 3, _MESSAGE, "Any")],
    "Any": [("type_url", 1, _STRING, ""), ("value", 2, _BYTES, "")],
    "ErrorInfo": [("reason", 1, _STRING, "")],
    "BadRequest": [("field_violations", 1, _MESSAGE, "FieldViolation")],
    "FieldViolation": [("field", 1, _STRING, "")],
    "RetryInfo": [("retry_delay", 1, _MESSAGE, "Duration")],
    "Duration": [("seconds", 1, _INT64, ""), ("nanos", 2, _INT32, "")],
}


def field_and_reason(details: bytes) -> tuple[str, str]:
    """Reads the field at fault and the reason; each is empty if missing in the details."""
    read = _read(details)
    violations = read["BadRequest"].field_violations if "BadRequest" in read else ()
    return violations[0].field if violations else "", read["ErrorInfo"].reason if "ErrorInfo" in read else ""


def retry_delay(details: bytes) -> float | None:
    """Reads the seconds after which to retry; None if missing in the details."""
    read = _read(details)
    if "RetryInfo" not in read or not read["RetryInfo"].HasField("retry_delay"):
        return None
    delay = read["RetryInfo"].retry_delay
    return max(0.0, float(delay.seconds + delay.nanos / 1e9))


def _read(details: bytes) -> dict[str, Any]:
    """The known details, by their type."""
    read = {}
    try:
        for detail in _CLASSES["Status"].FromString(details).details:
            package, _, kind = detail.type_url.rpartition("/")[2].rpartition(".")
            if package == "google.rpc" and kind in _CLASSES:
                read[kind] = _CLASSES[kind].FromString(detail.value)
    except message.DecodeError:
        # Details of another origin, such as a proxy.
        return {}
    return read


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="halfmq/details.proto", package="halfmq.details", syntax="proto3")
    for name, fields in _FIELDS.items():
        described = file.message_type.add(name=name)
        for field, number, kind, of in fields:
            label = (
                descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
                if field in _REPEATED
                else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
            )
            type_name = f".halfmq.details.{of}" if of else None
            described.field.add(name=field, number=number, type=kind, label=label, type_name=type_name)
    # A separate pool: an application may have the original ones in the default pool.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"halfmq.details.{name}")) for name in _FIELDS
    }


_CLASSES = _classes()
