"""`halfmq demo --input`: the user's rows there and back, and files that cannot be used."""

from __future__ import annotations

import csv
import json
import sqlite3
from typing import TYPE_CHECKING

import pytest

from acceptance.demo_runs import DemoRun, run_demo
from support.databases import connect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.databases import Kind

AWKWARD = ['comma, "quote"', "two\nlines", "Ünïcödé ☕ 𝄞", "back\\slash 'x'", " spaces ", "", "NULL", "0.10", "\t?%s"]


def write_csv(path: Path, count: int) -> list[dict[str, str]]:
    rows = [{"id": str(n), "text": AWKWARD[n % len(AWKWARD)], "größe": f"{n / 7:.3f}"} for n in range(count)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return rows


def received_rows(folder: Path) -> list[str]:
    """The bodies in the consumer's table of a run that kept its files."""
    connection = sqlite3.connect(folder / "consumer.db")
    try:
        found = connection.execute("SELECT body FROM demo_rows_received ORDER BY number").fetchall()
    finally:
        connection.close()
    return [body for (body,) in found]


def kept_folder(temporary: Path) -> Path:
    return next(path for path in temporary.iterdir() if path.is_dir())


def assert_equal(run: DemoRun, rows: int, together: int = 1) -> None:
    assert run.status == 0, run.output + run.errors
    figures = run.figures
    for name in ("rows of the file", "business table", "released", "consumed"):
        assert figures[name] == rows
    assert figures["local transactions"] >= -(-rows // together)  # type: ignore[operator]
    assert figures["file and business table"] == figures["comparison"] == "equal"


def test_a_csv_file_arrives_as_it_was_although_the_producer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = write_csv(path, 300)
    run = run_demo(f"--input={path}", "--keep", temporary=tmp_path)
    assert_equal(run, 300)
    assert run.number("in doubt after the kill") >= 1
    assert run.number("resolved by a check") == run.number("in doubt after the kill")
    assert [json.loads(body) for body in received_rows(kept_folder(tmp_path))] == rows


def test_json_lines_arrive_letter_for_letter_without_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [f'{{"n": {n}, "price": 1.10, "big": 12345678901234567890123, "s": "caf\\u00e9 é"}}' for n in range(50)]
    path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    run = run_demo(f"--input={path}", "--no-kill-producer", "--keep", temporary=tmp_path)
    assert_equal(run, 50)
    assert run.number("in doubt after the kill") == 0
    assert "SIGKILL" not in run.output
    assert received_rows(kept_folder(tmp_path)) == lines


def test_one_row_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "rows.ndjson"
    path.write_text('{"only": 1}')
    run = run_demo(f"--input={path}", temporary=tmp_path)
    assert_equal(run, 1)
    assert run.number("resolved by a check") == 1


def test_rows_that_share_transactions(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    write_csv(path, 1000)
    run = run_demo(f"--input={path}", "--rows-per-transaction=30", temporary=tmp_path)
    assert_equal(run, 1000, together=30)
    assert run.number("local transactions") <= 1000 // 30 + 2


def test_a_named_topic_is_kept_and_its_other_messages_are_passed_over(
    server_kind: Kind, fresh_database: Callable[[Kind], str], tmp_path: Path
) -> None:
    url = fresh_database(server_kind)
    path = tmp_path / "rows.csv"
    write_csv(path, 120)
    for number in (1, 2):
        run = run_demo(f"--input={path}", f"--database={url}", "--topic=my-rows", temporary=tmp_path)
        assert_equal(run, 120)
        assert ("120 messages of others passed over" in run.remarks["consumed"]) == (number == 2)
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT name FROM topic")
        assert cursor.fetchall() == (("my-rows",),)
        cursor.execute("SELECT COUNT(*) FROM message")
        assert cursor.fetchone() == (240,)


@pytest.mark.parametrize(
    ("name", "content", "line", "words"),
    [
        ("empty.csv", b"", 0, "it is empty; the first line must name the columns"),
        ("header.csv", b"a,b\n", 0, "there are no rows"),
        ("bare.csv", b"2013,1,UA\n2013,2,AA\n", 1, "this is no header, column 1 is the number '2013'"),
        ("twice.csv", b"UA,UA\n1,2\n", 1, "names 'UA' twice"),
        ("nameless.csv", b"a,,c\n1,2,3\n", 1, "column 2 of the header has no name"),
        ("ragged.csv", b'a,b\n1,"x\ny"\n1,2,3\n', 4, "the row has 3 cells, the header has 2"),
        ("short.csv", b"a,b\n1,2\n1\n", 3, "the row has 1 cells"),
        ("quote.csv", b'a,b\n1,"2\n', 2, "it is not CSV"),
        ("latin.csv", "a,b\n1,2\n3,Zürich\n".encode("latin-1"), 3, "0xfc) is not UTF-8; convert the file first"),
        ("utf16.csv", "a,b\n1,2\n".encode("utf-16"), 1, "is not UTF-8"),
        ("large.csv", b"a,b\n1,2\n1," + b"x" * (4 << 20) + b"\n", 3, "a message has 4,194,304 at most"),
        ("empty.jsonl", b"", 0, "there are no rows"),
        ("broken.jsonl", b'{"a":1}\n{"a":\n', 2, "it is not JSON"),
        ("list.jsonl", b'{"a":1}\n[1]\n', 2, "it is a list; each line must be one JSON object"),
        ("nan.jsonl", b'{"a":NaN}\n', 1, "NaN is no JSON value"),
        ("latin.jsonl", b'{"a":1}\n{"a":"\xe9"}\n', 2, "is not UTF-8"),
        ("rows.xlsx", b"PK", 0, "must end in .csv, .jsonl, .ndjson"),
        ("missing.csv", None, 0, "there is no such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_line_and_remedy(
    name: str, content: bytes | None, line: int, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    run = run_demo(f"--input={path}", temporary=tmp_path)
    assert run.status == 2, run.output
    where = f"{path}, line {line}: " if line else f"{path}: "
    assert run.errors.startswith(f"halfmq: input: {where}")
    assert words in run.errors
    assert run.output == ""
    assert not any(found.is_dir() for found in tmp_path.iterdir())


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").mkdir()
    run = run_demo(f"--input={tmp_path / 'rows.csv'}", temporary=tmp_path)
    assert run.status == 2
    assert "cannot be read" in run.errors
