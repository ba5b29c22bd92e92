"""The rich details of a refusal (google.rpc.Status): which field is at fault, and the reason as a constant.

The messages are described here as far as they are read, because the package that has them is one that only the broker
needs. Field numbers are those of google/rpc/status.proto and error_details.proto.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

__all__ = ["DETAILS_KEY", "field_and_reason"]

DETAILS_KEY = "grpc-status-details-bin"
"""The trailing metadata that carries them."""

_STRING, _BYTES, _MESSAGE = (
    descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
)
_FIELDS = {
    "Status": [("details", 3, _MESSAGE, "Any")],
    "Any": [("type_url", 1, _STRING, ""), ("value", 2, _BYTES, "")],
    "ErrorInfo": [("reason", 1, _STRING, "")],
    "BadRequest": [("field_violations", 1, _MESSAGE, "FieldViolation")],
    "FieldViolation": [("field", 1, _STRING, "")],
}


def field_and_reason(details: bytes) -> tuple[str, str]:
    """Reads the field at fault and the reason; each is empty where the details do not say."""
    field = reason = ""
    try:
        for detail in _CLASSES["Status"].FromString(details).details:
            kind = detail.type_url.rpartition("/")[2]
            if kind == "google.rpc.ErrorInfo":
                reason = _CLASSES["ErrorInfo"].FromString(detail.value).reason
            elif kind == "google.rpc.BadRequest":
                violations = _CLASSES["BadRequest"].FromString(detail.value).field_violations
                field = violations[0].field if violations else ""
    except message.DecodeError:
        # Somebody else's details, such as those of a proxy.
        return "", ""
    return field, reason


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="halfmq/details.proto", package="halfmq.details", syntax="proto3")
    for name, fields in _FIELDS.items():
        described = file.message_type.add(name=name)
        for field, number, kind, of in fields:
            label = (
                descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
                if kind == _MESSAGE
                else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
            )
            type_name = f".halfmq.details.{of}" if of else None
            described.field.add(name=field, number=number, type=kind, label=label, type_name=type_name)
    # A pool of its own: an application may have the real ones in the common pool.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"halfmq.details.{name}")) for name in _FIELDS
    }


_CLASSES = _classes()
