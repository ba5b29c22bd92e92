"""Tables that fit a terminal: long texts are folded; where that is not enough, each row is a block of lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

_GAP = 2
_SHORT = 24
"""Columns up to this width are never folded: times, names of states, numbers."""
_FOLDED = 16
"""Longer ones are folded to this width, at the least."""


class Form(NamedTuple):
    """The form of a column.

    Attributes:
        title: Its title.
        right: Whether it is aligned to the right.
        whole: Whether it is never folded: people copy what is in it.
    """

    title: str
    right: bool
    whole: bool


def fitted(forms: Sequence[Form] | None, rows: Sequence[Sequence[str]], width: int) -> Table:
    """A table of texts, none of which is interpreted as markup.

    Args:
        forms: The columns; None: names and values in two columns without titles.
        rows: The texts.
        width: Columns of the terminal.
    """
    if forms is None:
        return _pairs(rows)
    natural = [
        max([cell_len(form.title), *(cell_len(row[number]) for row in rows)]) for number, form in enumerate(forms)
    ]
    folds = [wide > _SHORT and not form.whole for wide, form in zip(natural, forms, strict=True)]
    gaps = _GAP * (len(forms) - 1)
    least = sum(_FOLDED if fold else wide for wide, fold in zip(natural, folds, strict=True)) + gaps
    return _table(forms, rows, folds) if least <= width else _blocks(forms, rows)


def _table(forms: Sequence[Form], rows: Sequence[Sequence[str]], folds: Sequence[bool]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for form, fold in zip(forms, folds, strict=True):
        table.add_column(
            Text(form.title),
            justify="right" if form.right else "left",
            overflow="fold",
            no_wrap=not fold,
            min_width=_FOLDED if fold else None,
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _blocks(forms: Sequence[Form], rows: Sequence[Sequence[str]]) -> Table:
    lines: list[tuple[str, str]] = []
    for row in rows:
        lines += [("", "")] * bool(lines)
        lines += [(form.title, cell) for form, cell in zip(forms, row, strict=True) if cell not in {"-", ""}]
    return _pairs(lines)


def _pairs(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
