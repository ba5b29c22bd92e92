"""The user's rows: CSV with a header, or JSON lines, each row as the JSON of its message."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from broker.domain.limits import Limits
from broker.errors import ConfigurationError
from client_core.portions import portions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

LARGEST_BODY = Limits().max_body
CSV, JSON_LINES = "csv", "jsonl"
KINDS = {".csv": CSV, ".jsonl": JSON_LINES, ".ndjson": JSON_LINES}


@dataclass(frozen=True)
class SourceRow:
    """A row of the file.

    Attributes:
        number: number of the row, from 1, without the header.
        body: the row as a JSON object.
    """

    number: int
    body: str


class InputRefused(ConfigurationError):
    """The file cannot be used; names file, line and remedy."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        """Takes the line, from 1; 0: the file as a whole."""
        where = f"{path}, line {line}" if line else str(path)
        super().__init__(f"{where}: {problem}", field="input")


def check(path: Path) -> int:
    """Reads the whole file once, before anything is sent.

    Returns:
        The number of rows.

    Raises:
        InputRefused: the file, or a line of it, cannot be used.
    """
    count = sum(1 for _ in read(path))
    if count == 0:
        raise InputRefused(path, 0, "there are no rows in it; a demo needs at least one")
    return count


def read(path: Path) -> Iterator[SourceRow]:
    """Reads the rows, one at a time.

    Raises:
        InputRefused: the file, or a line of it, cannot be used.
    """
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise InputRefused(path, 0, f"the name must end in {', '.join(KINDS)}, so that it is clear what it holds")
    bodies = _csv_bodies if kind == CSV else _json_bodies
    for number, (line, body) in enumerate(bodies(path), 1):
        size = len(body) if body.isascii() else _size(path, line, body)
        if size > LARGEST_BODY:
            raise InputRefused(
                path,
                line,
                f"the row has {size:,} bytes as JSON; a message has {LARGEST_BODY:,} at most: split the row, or keep "
                "its large column elsewhere and send a key to it",
            )
        yield SourceRow(number, body)


def _size(path: Path, line: int, body: str) -> int:
    try:
        return len(body.encode())
    except UnicodeEncodeError:
        raise InputRefused(path, line, "a text has half a surrogate pair, which UTF-8 cannot hold; repair it") from None


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield _decoded(path, number, line)
    except FileNotFoundError:
        raise InputRefused(path, 0, "there is no such file; check the path") from None
    except OSError as error:
        raise InputRefused(
            path, 0, f"it cannot be read ({error.strerror}); check what it is and who may read it"
        ) from None


def _decoded(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputRefused(
            path,
            number,
            f"byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; convert the file first, for example: "
            f"iconv -f ISO-8859-1 -t UTF-8 {path.name}",
        ) from None


def _csv_bodies(path: Path) -> Iterator[tuple[int, str]]:
    csv.field_size_limit(4 * LARGEST_BODY)
    reader = csv.reader(_lines(path), strict=True)
    encode: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    try:
        header = next(reader, None)
        if header is None:
            raise InputRefused(path, 0, "it is empty; the first line must name the columns")
        _check_header(path, header)
        for cells in reader:
            if len(cells) != len(header):
                if not cells:
                    continue
                _refuse_ragged(path, reader.line_num, len(cells), len(header))
            yield reader.line_num, encode(dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise InputRefused(path, reader.line_num, f"it is not CSV ({error}); check quotes and line ends") from None


def _check_header(path: Path, header: list[str]) -> None:
    remedy = "the first line must name the columns, each once; add such a line"
    if not any(cell.strip() for cell in header):
        raise InputRefused(path, 1, f"the header is empty; {remedy}")
    for position, name in enumerate(header, 1):
        if not name.strip():
            raise InputRefused(path, 1, f"column {position} of the header has no name; {remedy}")
        if _is_number(name):
            raise InputRefused(path, 1, f"this is no header, column {position} is the number {name!r}; {remedy}")
    for name in header:
        if header.count(name) > 1:
            raise InputRefused(path, 1, f"the header names {name!r} twice, or there is none; {remedy}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _refuse_ragged(path: Path, line: int, found: int, wanted: int) -> NoReturn:
    raise InputRefused(
        path,
        line,
        f"the row has {found} cells, the header has {wanted}; fill it up, or quote cells with a comma or a line end",
    )


def _json_bodies(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(_lines(path), 1):
        # The line is kept unchanged: parsing and formatting numbers could change them.
        text = line.strip()
        if not text:
            continue
        try:
            row = json.loads(text, parse_constant=_refuse_constant)
        except ValueError as error:
            raise InputRefused(path, number, f"it is not JSON ({error}); each line must be one JSON object") from None
        if not isinstance(row, dict):
            raise InputRefused(path, number, f"it is a {type(row).__name__}; each line must be one JSON object")
        yield number, text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def in_groups(rows: Iterable[SourceRow], size: int, most_bytes: int = LARGEST_BODY) -> Iterator[list[SourceRow]]:
    """Groups rows that share a transaction.

    Args:
        rows: the rows.
        size: how many at most.
        most_bytes: a group is closed when it reaches this many bytes.
    """
    return portions(rows, lambda row: len(row.body), most_bytes=most_bytes, most=size)
