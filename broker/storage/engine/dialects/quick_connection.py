"""PyMySQL's connection with a quicker way to take rows apart.

The driver reads each value through several calls, which is most of what handing out messages costs a broker. Here a row
is taken apart in one loop, or by one call where it has the shape of the row before it. Same values, same types; only
the methods of the driver that do it are replaced.
"""

from __future__ import annotations

import io
import operator
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeAlias

from pymysql.connections import MAX_PACKET_LEN, Connection, MySQLResult
from pymysql.constants import CR
from pymysql.err import OperationalError
from pymysql.protocol import MysqlPacket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

READ_AT_ONCE = 256 * 1024
# Rows begin with the length of their first value; an error and the end begin with these.
_FIRST_OF_OTHERS = 0xFE
Reader: TypeAlias = "Callable[[Any], Any]"
_Column: TypeAlias = "tuple[str | None, Reader | None]"
_NULL = 251
# Bytes that tell a length, by the first of them, where it is more than one.
_WIDTHS = {252: 3, 253: 4, 254: 9}
# So many rows at most are taken apart without a look whether they are alike.
_LONGEST_PAUSE = 64


def take_apart(data: bytes, readers: Iterable[Reader | None], at: int = 0) -> tuple[Any, ...]:
    """The values of a row of the text protocol: each has its length before it, in 1 to 9 bytes; 251 stands for NULL."""
    row: list[Any] = []
    append = row.append
    for read in readers:
        length = data[at]
        at += 1
        if length > 250:
            if length == 251:
                append(None)
                continue
            size = 2 if length == 252 else 3 if length == 253 else 8
            length = int.from_bytes(data[at : at + size], "little")
            at += size
        end = at + length
        append(data[at:end] if read is None else read(data[at:end]))
        at = end
    return tuple(row)


def readers_of(columns: Iterable[_Column]) -> list[Reader | None]:
    """What makes a value of the bytes of each column; None where they are the value."""
    return [_reader(encoding, convert) for encoding, convert in columns]


def _reader(encoding: str | None, convert: Reader | None) -> Reader | None:
    if encoding is None or convert is int:
        return convert  # int reads digits from bytes as well as from text.
    if convert is None:
        return operator.methodcaller("decode", encoding)
    return lambda value: convert(value.decode(encoding))


class _Shape:
    """Where a row has its values, but for the last one, which is as long as it likes.

    A row has the shape of another one when the same lengths stand at the same places: the first length tells where the
    second one is, and so on. So one comparison of all lengths is enough.
    """

    def __init__(self, data: bytes, readers: Sequence[Reader | None], start: int) -> None:
        """Learns it from the row at `start`, which has at least two values."""
        parts, lengths, self.values = "", [], []
        at = lengths_at = start
        for index, read in enumerate(readers[:-1]):
            length, at = _length_at(data, at)
            if length is not None:
                lengths.append(data[lengths_at:at])
                parts += f"{at - lengths_at}s{length}s"
                self.values.append((index, read))
                at += length
                lengths_at = at
        lengths.append(data[lengths_at:at])
        self.unpack = Struct(f"{parts}{at - lengths_at}s").unpack_from
        self.lengths = tuple(lengths)
        self.size = at - start
        self.nothing: list[Any] = [None] * len(readers)


def _length_at(data: bytes, at: int) -> tuple[int | None, int]:
    """The length of a value, or None for NULL, and where the value is."""
    first = data[at]
    width = _WIDTHS.get(first, 1)
    if width > 1:
        return int.from_bytes(data[at + 1 : at + width], "little"), at + width
    return None if first == _NULL else first, at + 1


class Rows:
    """The rows of one result, as they come."""

    def __init__(self, readers: Sequence[Reader | None]) -> None:
        """Takes what makes values of the bytes of each column."""
        self.taken: list[tuple[Any, ...]] = []
        self._readers = readers
        self._last = readers[-1] if readers else None
        self._shape: _Shape | None = None
        self._pause = 1 if len(readers) > 1 else 0
        self._left = self._pause

    def take(self, data: bytes, start: int, end: int) -> None:
        """Takes the row at data[start:end] apart."""
        shape = self._shape
        if shape is not None:
            fields = shape.unpack(data, start) if start + shape.size < end else ()
            if fields[::2] == shape.lengths:
                row = shape.nothing[:]
                field = 1
                for index, read in shape.values:
                    row[index] = fields[field] if read is None else read(fields[field])
                    field += 2
                at = start + shape.size
                if data[at] != _NULL:
                    content = data[at + _WIDTHS.get(data[at], 1) : end]
                    row[-1] = content if self._last is None else self._last(content)
                self.taken.append(tuple(row))
                return
            # Rows that differ cost a look each; the more of them there are, the longer nobody looks.
            self._shape = None
            self._pause = self._left = min(2 * self._pause, _LONGEST_PAUSE)
        elif self._pause:
            self._left -= 1
            if not self._left:
                self._shape = _Shape(data, self._readers, start)
        self.taken.append(take_apart(data, self._readers, start))


class QuickResult(MySQLResult):  # type: ignore[misc]
    """The driver's result, with rows taken apart at once."""

    connection: Any

    def _read_rowdata_packet(self) -> None:
        connection, rows = self.connection, Rows(readers_of(self.converters))
        while True:
            connection.take_buffered(rows)
            data = connection.read_row_data()
            if data[0] >= _FIRST_OF_OTHERS and self._ended_by(data):
                break
            rows.take(data, 0, len(data))
        self.affected_rows = len(rows.taken)
        self.rows = tuple(rows.taken)

    def _ended_by(self, data: bytes) -> bool:
        """Whether this is no row but the end of them."""
        packet = MysqlPacket(data, self.connection.encoding)
        if packet.is_error_packet():
            packet.raise_for_error()
        ended: bool = self._check_packet_is_eof(packet)
        if ended:
            self.connection = None
        return ended


class QuickConnection(Connection):  # type: ignore[misc]
    """The driver's connection, giving QuickResult, and reading more at a time."""

    _rfile: Any
    _next_seq_id: int

    def connect(self, sock: Any = None) -> None:
        """Connects; what the server said so far has been read, so the buffer can be changed."""
        super().connect(sock)
        self._rfile = io.BufferedReader(self._rfile.detach(), READ_AT_ONCE)

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        if unbuffered:
            return super()._read_query_result(unbuffered)
        self._result = None
        result = QuickResult(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return result.affected_rows

    def take_buffered(self, rows: Rows) -> None:
        """Takes the rows apart that are here in full already, up to the first packet that is none, or is out of turn.

        A packet has 3 bytes of length and 1 of its number before it. Reading each by itself costs as much as taking its
        row apart.
        """
        try:
            buffered: bytes = self._rfile.peek()
        except OSError as error:
            self._force_close()
            raise OperationalError(
                CR.CR_SERVER_LOST, f"Lost connection to MySQL server during query ({error})"
            ) from error
        end, at, number = len(buffered) - 4, 0, self._next_seq_id
        take = rows.take
        while at < end:
            start = at + 4
            following = start + (buffered[at] | buffered[at + 1] << 8 | buffered[at + 2] << 16)
            if following > end + 4 or buffered[at + 3] != number or buffered[start] >= _FIRST_OF_OTHERS:
                break
            take(buffered, start, following)
            at, number = following, (number + 1) & 255
        self._rfile.read(at)
        self._next_seq_id = number

    def read_row_data(self) -> bytes:
        """The next packet's content, as it came."""
        data = b""
        while True:
            header = self._read_bytes(4)
            length = header[0] | header[1] << 8 | header[2] << 16
            if header[3] != self._next_seq_id:
                self._force_close()
                raise OperationalError(CR.CR_SERVER_LOST, "Lost connection to MySQL server during query")
            self._next_seq_id = (self._next_seq_id + 1) % 256
            part: bytes = self._read_bytes(length)
            if length < MAX_PACKET_LEN:
                return data + part if data else part
            data += part
