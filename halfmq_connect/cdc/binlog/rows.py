"""Row events: the images before and after each change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfmq_connect.cdc.errors import CannotFollow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfmq_connect.cdc.binlog.table_map import TableMap
    from halfmq_connect.cdc.binlog.values import Value

__all__ = ["Change", "changes"]

Image = list["Value"]
Change = tuple[str, "Image | None", "Image | None"]
"""What happened, c, u or d, and the images before and after it."""


def changes(what: str, body: bytes, at: int, table: TableMap) -> Iterator[Change]:
    """The changes of a row event, whose body has the number of columns at a place, and the rows behind it.

    Raises:
        CannotFollow: An image lacks columns.
        ValueError, LookupError: It is damaged.
    """
    count, at = body[at], at + 1
    if count >= 251:
        size = {252: 2, 253: 3}[count]
        count, at = int.from_bytes(body[at : at + size], "little"), at + size
    size, everything = (count + 7) // 8, (1 << count) - 1
    for _ in range(2 if what == "u" else 1):
        present = int.from_bytes(body[at : at + size], "little") & everything  # Unused bits are set, or not.
        if count != len(table.columns) or present != everything:
            msg = (
                f"rows of {table.database}.{table.table} were written without some of their columns;"
                " set binlog_row_image=FULL for all sessions, then take a new snapshot"
            )
            raise CannotFollow(msg)
        at += size
    readers = [column.read for column in table.columns]
    end = len(body)
    while at < end:
        first, at = _image(body, at, size, readers)
        second = None
        if what == "u":
            second, at = _image(body, at, size, readers)
        if at > end:
            msg = f"it ends at byte {end}, and has a row up to byte {at}"
            raise ValueError(msg)
        if what == "c":
            yield "c", None, first
        else:
            yield what, first, second


def _image(body: bytes, at: int, size: int, readers: list) -> tuple[Image, int]:  # type: ignore[type-arg]
    nulls = int.from_bytes(body[at : at + size], "little")
    at += size
    image: Image = []
    append = image.append
    if not nulls:
        for read in readers:
            value, at = read(body, at)
            append(value)
        return image, at
    for read in readers:
        if nulls & 1:
            append(None)
        else:
            value, at = read(body, at)
            append(value)
        nulls >>= 1
    return image, at
