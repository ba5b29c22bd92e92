"""Tables on terminals: what people copy stays whole, long texts are folded, and what does not fit becomes blocks."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from halfmq_cli.admin.fitting import Form, fitted

ID = "018f2a6e-7b1c-7cc3-9b7e-0c1d2e3f4a5b"
FORMS = [Form("message", False, True), Form("size", True, False), Form("body", False, False)]
ROWS = [[ID, "7 B", "x" * 60], [ID, "10 KiB", "-"]]


def shown(width: int, forms: list[Form] | None = FORMS, rows: list[list[str]] = ROWS) -> list[str]:
    console = Console(file=StringIO(), width=width, markup=False, highlight=False)
    console.print(fitted(forms, rows, width))
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_what_fits_is_a_table() -> None:
    assert shown(120) == [
        f"{'message':36}    size  body",
        f"{ID}     7 B  {'x' * 60}",
        f"{ID}  10 KiB  -",
    ]


def test_long_texts_are_folded_and_nothing_else() -> None:
    lines = shown(66)
    assert lines[1] == f"{ID}     7 B  {'x' * 20}"
    assert lines[2].strip() == "x" * 20
    assert lines[-1] == f"{ID}  10 KiB  -"


def test_on_a_narrow_terminal_each_row_is_a_block_without_what_is_empty() -> None:
    assert shown(50) == [
        f"message  {ID}",
        "size     7 B",
        f"body     {'x' * 41}",
        f"         {'x' * 19}",
        "",
        f"message  {ID}",
        "size     10 KiB",
    ]


def test_names_and_values_have_no_titles() -> None:
    assert shown(40, None, [["queues", "4"], ["why", "[bold]x"]]) == ["queues  4", "why     [bold]x"]


def test_wide_letters_count_as_two() -> None:
    forms = [Form("a", False, False), Form("b", False, False)]
    assert shown(12, forms, [["東京", "x"]]) == ["a     b", "東京  x"]
    assert shown(6, forms, [["東京", "x"]]) == ["a  東", "   京", "b  x"]
