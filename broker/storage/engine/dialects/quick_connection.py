"""PyMySQL's connection with a faster parser of results.

The driver reads each value through several calls, which is most of a broker's cost of delivering messages. Here a row
is parsed in one loop, or by one call if it has the shape of the previous row. The descriptions of columns are parsed
once: a connection meets the same ones again and again. Same values, same types; only the driver's methods for that are
replaced, and how it prepares for a server whose certificate is not checked. Its socket does not block, so that it can
be used in a greenlet on the event loop too.
"""

from __future__ import annotations

import operator
import ssl
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from pymysql.connections import MAX_PACKET_LEN, Connection, MySQLResult
from pymysql.constants import CR
from pymysql.err import OperationalError
from pymysql.protocol import MysqlPacket

from broker.storage.engine.dialects.byte_stream import ByteStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# Rows begin with the length of their first value; error and end packets begin with these.
_FIRST_OF_OTHERS = 0xFE
_END, _LONGEST_END = 0xFE, 8
_MORE_RESULTS = 8
_MOST_KNOWN = 500
_OK = Struct("<HH")
Reader: TypeAlias = "Callable[[Any], Any]"
_Column: TypeAlias = "tuple[str | None, Reader | None]"
_NULL = 251
# Number of bytes of a length, by the first byte, if more than one.
_WIDTHS = {252: 3, 253: 4, 254: 9}
# Maximum number of rows that are parsed without checking whether they have the same shape.
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
    """Converters of each column's bytes; None if the bytes are the value."""
    return [_reader(encoding, convert) for encoding, convert in columns]


def _reader(encoding: str | None, convert: Reader | None) -> Reader | None:
    if encoding is None or convert is int:
        return convert  # int reads digits from bytes as well as from text.
    if convert is None:
        return operator.methodcaller("decode", encoding)
    return lambda value: convert(value.decode(encoding))


class _Shape:
    """The positions of a row's values, except the last one, whose length is arbitrary.

    A row has the shape of another one when the same lengths are at the same positions: the first length gives the
    position of the second one, and so on. So one comparison of all lengths is enough.
    """

    def __init__(self, data: bytes, readers: Sequence[Reader | None], start: int) -> None:
        """Derives it from the row at `start`, which has at least two values."""
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
    """The length of a value, or None for NULL, and its position."""
    first = data[at]
    width = _WIDTHS.get(first, 1)
    if width > 1:
        return int.from_bytes(data[at + 1 : at + width], "little"), at + width
    return None if first == _NULL else first, at + 1


def _number_at(data: bytes, at: int) -> tuple[int, int]:
    """A number, and the position behind it."""
    number, at = _length_at(data, at)
    return number or 0, at


class Rows:
    """The rows of one result, parsed as they arrive."""

    def __init__(self, readers: Sequence[Reader | None]) -> None:
        """Takes the converters of the columns."""
        self.taken: list[tuple[Any, ...]] = []
        self._readers = readers
        self._last = readers[-1] if readers else None
        self._shape: _Shape | None = None
        self._pause = 1 if len(readers) > 1 else 0
        self._left = self._pause

    def take(self, data: bytes, start: int, end: int) -> None:
        """Parses the row at data[start:end]."""
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
            # A failed shape check costs time; after repeated failures more rows are parsed before the next check.
            self._shape = None
            self._pause = self._left = min(2 * self._pause, _LONGEST_PAUSE)
        elif self._pause:
            self._left -= 1
            if not self._left:
                self._shape = _Shape(data, self._readers, start)
        self.taken.append(take_apart(data, self._readers, start))


class Columns(NamedTuple):
    """What the driver makes of the descriptions of a result's columns, and the readers of their values."""

    fields: list[Any]
    converters: list[_Column]
    description: tuple[Any, ...]
    readers: list[Reader | None]


class _Again:
    """A connection that returns packets which were read before."""

    def __init__(self, connection: Any, packets: Iterable[bytes]) -> None:
        self._connection = connection
        self._packets = iter(packets)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
        packet = packet_type(next(self._packets), self._connection.encoding)
        if packet.is_error_packet():
            packet.raise_for_error()
        return packet


class QuickResult(MySQLResult):  # type: ignore[misc]
    """The driver's result, with rows parsed immediately."""

    connection: Any
    fields: list[Any]
    converters: list[_Column]
    description: tuple[Any, ...]
    _readers: list[Reader | None]

    def _read_ok_packet(self, first_packet: Any) -> None:
        data = first_packet.get_all_data()
        self.affected_rows, at = _number_at(data, 1)
        self.insert_id, at = _number_at(data, at)
        self.server_status, self.warning_count = _OK.unpack_from(data, at)
        self.message = data[at + 4 :]
        self.has_next = self.server_status & _MORE_RESULTS

    def _get_descriptions(self) -> None:
        connection = self.connection
        packets = []
        while True:
            packets.append(connection.read_row_data())
            if packets[-1][0] >= _FIRST_OF_OTHERS:
                break
        key = tuple(packets[:-1])
        columns = connection.known_columns.get(key) if packets[-1][0] == _END else None
        if columns is None:
            self.connection = _Again(connection, packets)
            try:
                super()._get_descriptions()
            finally:
                self.connection = connection
            columns = Columns(self.fields, self.converters, self.description, readers_of(self.converters))
            if len(connection.known_columns) >= _MOST_KNOWN:
                connection.known_columns.clear()
            connection.known_columns[key] = columns
        self.fields, self.converters, self.description, self._readers = columns

    def _read_rowdata_packet(self) -> None:
        connection, rows = self.connection, Rows(self._readers)
        while True:
            connection.take_buffered(rows)
            data = connection.read_row_data()
            if data[0] >= _FIRST_OF_OTHERS and self._ended_by(data):
                break
            rows.take(data, 0, len(data))
        self.affected_rows = len(rows.taken)
        self.rows = tuple(rows.taken)

    def _ended_by(self, data: bytes) -> bool:
        """Whether this is the end packet."""
        if data[0] == _END and len(data) <= _LONGEST_END:
            self.warning_count, status = _OK.unpack_from(data, 1)
            self.has_next = status & _MORE_RESULTS
            self.connection = None
            return True
        packet = MysqlPacket(data, self.connection.encoding)
        if packet.is_error_packet():
            packet.raise_for_error()
        return False


def unchecked_tls() -> ssl.SSLContext:
    """What a connection without TLS options is encrypted by, where the server can: no certificate is checked.

    The driver's own has read all of the machine's certificates nevertheless: 20 to 60 ms of processor time each.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class QuickConnection(Connection):  # type: ignore[misc]
    """The driver's connection, returning QuickResult, and reading more at a time."""

    _rfile: Any
    _next_seq_id: int
    _stream: ByteStream | None = None
    known_columns: dict[tuple[bytes, ...], Columns]

    def connect(self, sock: Any = None) -> None:
        """Connects and logs in as the driver does; after that, the socket does not block."""
        self.known_columns = {}
        self._stream = None
        super().connect(sock)
        # Everything sent by the server so far has been read, so the driver's buffer can be replaced.
        self._rfile.close()
        self._rfile = self._stream = ByteStream(self._sock)

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        if sslp:
            made: ssl.SSLContext = super()._create_ssl_ctx(sslp)
            return made
        return unchecked_tls()

    def _force_close(self) -> None:
        super()._force_close()
        self._stream = None

    def _write_bytes(self, data: bytes) -> None:
        if self._stream is None:
            super()._write_bytes(data)
            return
        try:
            self._stream.write(data, self._write_timeout)
        except OSError as error:
            self._force_close()
            raise OperationalError(CR.CR_SERVER_GONE_ERROR, f"MySQL server has gone away ({error!r})") from error
        except BaseException:
            # Whoever waited was stopped: the rest of the packet was not sent.
            self._force_close()
            raise

    def _read_bytes(self, num_bytes: int) -> bytes:
        if self._stream is None:
            data: bytes = super()._read_bytes(num_bytes)
            return data
        try:
            data = self._stream.read(num_bytes, self._read_timeout)
        except BaseException as error:
            self._lost(error)
        if len(data) < num_bytes:
            self._lost(None)
        return data

    def _lost(self, error: BaseException | None) -> NoReturn:
        """Closes the connection; raises an error of the driver, unless this one is not of the socket."""
        self._force_close()
        if error is not None and not isinstance(error, OSError):
            raise error
        reason = f" ({error})" if error else ""
        raise OperationalError(CR.CR_SERVER_LOST, f"Lost connection to MySQL server during query{reason}") from error

    def _read_packet(self, packet_type: Any = MysqlPacket) -> Any:
        if self._stream is None:
            return super()._read_packet(packet_type)
        packet = packet_type(self.read_row_data(), self.encoding)
        if packet.is_error_packet():
            if self._result is not None:
                self._result.unbuffered_active = False
            packet.raise_for_error()
        return packet

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
        """Parses the completely received rows, up to the first packet that is not a row, or is out of sequence.

        A packet has 3 bytes of length and 1 of its number before it. Reading each separately costs as much as parsing
        its row.
        """
        stream = self._rfile
        try:
            buffered: bytes = stream.peek(self._read_timeout)
        except BaseException as error:
            self._lost(error)
        end, at, number = len(buffered) - 4, 0, self._next_seq_id
        take = rows.take
        while at < end:
            start = at + 4
            following = start + (buffered[at] | buffered[at + 1] << 8 | buffered[at + 2] << 16)
            if following > end + 4 or buffered[at + 3] != number or buffered[start] >= _FIRST_OF_OTHERS:
                break
            take(buffered, start, following)
            at, number = following, (number + 1) & 255
        stream.read(at, None)
        self._next_seq_id = number

    def read_row_data(self) -> bytes:
        """The next packet's content."""
        data = b""
        while True:
            header = self._read_bytes(4)
            length = header[0] | header[1] << 8 | header[2] << 16
            if header[3] != self._next_seq_id:
                self._lost(None)
            self._next_seq_id = (self._next_seq_id + 1) % 256
            part: bytes = self._read_bytes(length)
            if length < MAX_PACKET_LEN:
                return data + part if data else part
            data += part
