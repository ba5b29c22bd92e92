"""Lists and pages, as tables on a terminal, as aligned lines in a pipe, and as JSON."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from halfmq_cli.admin.fitting import Form, fitted
from halfmq_cli.admin.plain import plain
from halfmq_cli.admin.records import json_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ItemT = TypeVar("ItemT")
_AT_ONCE = 1000
"""Rows whose widths are looked at together in a pipe."""


@dataclass(frozen=True)
class Column(Generic[ItemT]):
    """A column of a table.

    Attributes:
        title: Its title.
        cell: What it shows of an item; anything a client sent may be in it.
        right: Whether it is aligned to the right, as numbers are.
        whole: Whether a narrow terminal has to fold other columns instead, because people copy what is in this one.
    """

    title: str
    cell: Callable[[ItemT], str]
    right: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Listing(Generic[ItemT]):
    """Items to show.

    Attributes:
        columns: The columns of their table.
        find: Finds them; called again for each look of --watch.
        empty: What is said on standard error where there are none.
        limit: Items that are shown at most; None: all.
        more: What to do where there are more.
    """

    columns: Sequence[Column[ItemT]]
    find: Callable[[], Iterable[ItemT]]
    empty: str
    limit: int | None = None
    more: str = "--limit 0 shows all"

    def items(self) -> tuple[Iterable[ItemT], Callable[[], bool]]:
        """The items, up to the limit; and whether there are more, once these are read."""
        found = iter(self.find())
        if self.limit is None:
            return found, lambda: False
        return islice(found, self.limit), lambda: next(found, None) is not None


@dataclass
class Page:
    """Blocks of text about one thing.

    Attributes:
        blocks: Titles, fields, tables and lines, in their order.
    """

    blocks: list[tuple[str, Any]] = field(default_factory=list)

    def title(self, text: str) -> None:
        """Begins a part."""
        self.blocks.append(("title", plain(text)))

    def fields(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Names and values, one pair in a line."""
        self.blocks.append(("rows", (None, [[name, plain(value)] for name, value in pairs])))

    def table(self, columns: Sequence[Column[Any]], items: Iterable[Any]) -> None:
        """A table."""
        self.blocks.append(("rows", (columns, _cells(columns, items))))

    def lines(self, lines: Iterable[str]) -> None:
        """Lines as they are."""
        self.blocks.append(("lines", [plain(line) for line in lines]))

    def text(self) -> list[str]:
        """All lines, for a pipe."""
        found: list[str] = []
        for kind, content in self.blocks:
            if kind == "title":
                found += [""] * bool(found) + [content]
            elif kind == "lines":
                found += [f"  {line}" for line in content]
            else:
                columns, rows = content
                found += [f"  {line}" for line in _Aligned(columns, len(rows[0]) if rows else 0).lines(rows)]
        return found

    def rendered(self, width: int) -> RenderableType:
        """All of it, for a terminal of this width."""
        found: list[RenderableType] = []
        for kind, content in self.blocks:
            if kind == "title":
                found += [Text()] * bool(found) + [Text(content, style="bold")]
            elif kind == "lines":
                found += [Text(f"  {line}") for line in content]
            elif content[1] or content[0]:
                columns, rows = content
                found.append(Padding(fitted(_forms(columns), rows, width - 2), (0, 0, 0, 2)))
        return Group(*found)


class Output:
    """Standard output: a terminal, or a pipe or file."""

    def __init__(self, *, as_json: bool) -> None:
        """Takes whether it is to be JSON."""
        self.as_json = as_json
        self.is_terminal = sys.stdout.isatty()
        self.console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)

    def line(self, text: str) -> None:
        """A line of text that holds nothing from clients, or is plain already."""
        sys.stdout.write(f"{text}\n")

    def flush(self) -> None:
        """Has everything that was written arrive."""
        sys.stdout.flush()

    def json(self, value: Any) -> None:
        """A value in a line of JSON."""
        sys.stdout.write(json_line(value) + "\n")

    def table_of(self, columns: Sequence[Column[ItemT]], items: Iterable[ItemT]) -> RenderableType:
        """A table for a terminal."""
        return fitted(_forms(columns), _cells(columns, items), self.console.width)

    def print(self, content: RenderableType) -> None:
        """Writes something of rich to the terminal."""
        self.console.print(content)

    def page(self, page: Page) -> None:
        """Writes a page."""
        if self.is_terminal:
            self.print(page.rendered(self.console.width))
        else:
            for line in page.text():
                self.line(line)

    def rows(self, columns: Sequence[Column[ItemT]], items: Iterable[ItemT]) -> None:
        """Writes a table to the terminal, or aligned lines."""
        if self.is_terminal:
            self.print(self.table_of(columns, items))
        else:
            self.aligned(columns, items)

    def aligned(self, columns: Sequence[Column[ItemT]], items: Iterable[ItemT]) -> None:
        """Writes rows as aligned lines, never wrapped or cut, a thousand at a time."""
        found = iter(items)
        widths = _Aligned(columns, len(columns))
        while rows := _cells(columns, islice(found, _AT_ONCE)):
            for line in widths.lines(rows):
                self.line(line)


class _Aligned:
    """Lines with columns that are as wide as their widest text so far."""

    def __init__(self, columns: Sequence[Column[Any]] | None, count: int) -> None:
        self._titles = None if columns is None else [column.title for column in columns]
        self._right = [False] * count if columns is None else [column.right for column in columns]
        self._widths = [len(title) for title in self._titles] if self._titles else [0] * count
        self._begun = self._titles is None

    def lines(self, rows: Sequence[Sequence[str]]) -> list[str]:
        """The rows, and above the first ones the titles."""
        for row in rows:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, row, strict=True)]
        lines = [] if self._begun else [self._line(self._titles or [])]
        self._begun = True
        return lines + [self._line(row) for row in rows]

    def _line(self, row: Sequence[str]) -> str:
        cells = zip(row, self._widths, self._right, strict=True)
        return "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells).rstrip()


def _cells(columns: Sequence[Column[ItemT]], items: Iterable[ItemT]) -> list[list[str]]:
    return [[plain(column.cell(item)) for column in columns] for item in items]


def _forms(columns: Sequence[Column[Any]] | None) -> list[Form] | None:
    return None if columns is None else [Form(column.title, column.right, column.whole) for column in columns]
