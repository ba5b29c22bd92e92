"""The outbox: a table into which transactions insert messages; the log brings them here, and nobody polls."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from halfmq.v1.message_pb2 import Message
from halfmq_connect.cdc.errors import CannotFollow

if TYPE_CHECKING:
    from halfmq_connect.cdc.binlog.rows import Change
    from halfmq_connect.cdc.binlog.table_map import TableMap

__all__ = ["CREATE_OUTBOX", "outbox_message"]

CREATE_OUTBOX = """CREATE TABLE halfmq_cdc_outbox (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  topic VARCHAR(127) NOT NULL,
  body LONGBLOB NOT NULL,
  tag VARCHAR(255) NULL,
  message_keys JSON NULL COMMENT 'a list of texts',
  message_group VARCHAR(64) NULL,
  properties JSON NULL COMMENT 'an object of texts'
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"""
"""The statement that creates the table, under any name. Rows may be deleted in the transaction that inserts them."""

_NEEDED = ("topic", "body")


def outbox_message(table: TableMap, change: Change) -> Message | None:
    """The message of an inserted row; None for anything else: a deleted row, for one.

    Raises:
        CannotFollow: The row is no message.
    """
    op, _, row = change
    if op != "c" or row is None:
        return None
    found: dict[str, Any] = {column.name: value for column, value in zip(table.columns, row, strict=True)}
    types = {column.name: column.type for column in table.columns}
    name = f"{table.database}.{table.table}"
    if missing := [each for each in _NEEDED if not found.get(each)]:
        msg = f"a row of the outbox {name} has no {', '.join(missing)}: {found.get('id')}. A message needs both"
        raise CannotFollow(msg)
    message = Message(topic=found["topic"])
    if "blob" in types["body"] or "binary" in types["body"]:
        message.body = base64.b64decode(found["body"])
    else:
        message.body = str(found["body"]).encode()
    try:
        if found.get("tag"):
            message.tag = found["tag"]
        if found.get("message_group"):
            message.message_group = found["message_group"]
        if found.get("message_keys"):
            message.keys.extend(_of_kind(json.loads(found["message_keys"]), list, "message_keys"))
        if found.get("properties"):
            message.properties.update(_of_kind(json.loads(found["properties"]), dict, "properties"))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        msg = f"the row {found.get('id')} of the outbox {name} is no message: {error}"
        raise CannotFollow(msg) from None
    return message


def _of_kind(decoded: Any, kind: type[Any], column: str) -> Any:
    """What was decoded, which must be a list or an object; protobuf looks at what is in it.

    Raises:
        TypeError: It is something else, such as a text, whose letters would become keys.
    """
    if not isinstance(decoded, kind):
        msg = f"{column} is a JSON {'list' if kind is list else 'object'} of texts, not {type(decoded).__name__}"
        raise TypeError(msg)
    return decoded
