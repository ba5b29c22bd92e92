"""Each line of a log tells what it is about under keys of their own: transaction, message, client, group and topic.

The source is looked at: what a line's text tells, and what the function that writes it was given, is also a key. Where
the keys are made elsewhere, and only handed on, that they are handed on is all that can be seen here.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.storage.engine import item_ids
from broker.wire import request_ids
from client_core import ids
from client_core.logs import FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("broker", "client_core", "producer_sdk", "consumer_sdk", "halfmq_connect")
LOGGERS = {"logger", "_log", "self._logger"}
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
NAMED = {
    "transaction_id": "transaction_id",
    "message_id": "message_id",
    "client_id": "client_id",
    "group": "group",
    "_group": "group",
    "topic": "topic",
    "_topic": "topic",
    "incident": "incident",
}
"""Keys by the names that variables and attributes with such a value have."""


def calls_in(source: str) -> Iterator[tuple[ast.Call, ast.AST]]:
    """The calls that log, with the function that they are in."""

    def walk(node: ast.AST, inside: ast.AST) -> Iterator[tuple[ast.Call, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            if (
                isinstance(child, ast.Call)
                and isinstance(child.func, ast.Attribute)
                and child.func.attr in METHODS
                and ast.unparse(child.func.value) in LOGGERS
            ):
                yield child, inside
            yield from walk(child, child if is_function else inside)

    tree = ast.parse(source)
    yield from walk(tree, tree)


def lacking(source: str) -> list[str]:
    """The calls without a key for what they tell: the number of their line, and the keys."""
    found = []
    for call, function in calls_in(source):
        wanted = {
            NAMED[name]
            for argument in call.args
            for node in ast.walk(argument)
            if (name := getattr(node, "attr", getattr(node, "id", None))) in NAMED
        }
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            wanted |= {NAMED[each.arg] for each in function.args.args if each.arg in NAMED}
        extra = next((each.value for each in call.keywords if each.arg == "extra"), None)
        if isinstance(extra, ast.Dict) and None not in extra.keys:
            given = {key.value for key in extra.keys if isinstance(key, ast.Constant)}
        else:
            given = set() if extra is None else wanted
        if missing := sorted(wanted - given):
            found.append(f"{call.lineno}: {', '.join(missing)}")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_line_is_about_is_a_key(package: str) -> None:
    files = sorted((CHECKOUT / package).rglob("*.py"))
    assert sum(len(list(calls_in(file.read_text()))) for file in files) > 2
    found = [f"{file.relative_to(CHECKOUT)}:{each}" for file in files for each in lacking(file.read_text())]
    assert found == []


def test_a_line_without_its_key_is_found() -> None:
    assert lacking('def f(x):\n logger.warning("%s is gone", x.message_id)\n') == ["2: message_id"]
    assert lacking('def f(topic):\n _log.info("gone", extra={"group": 1})\n') == ["2: topic"]
    assert lacking('def f(topic):\n _log.info("gone", extra={"topic": topic})\n') == []
    assert lacking("def f(topic):\n _log.info('gone', extra=self.about)\n") == []


def test_all_keys_are_printed() -> None:
    """A key that the formats do not know would be lost without a word."""
    used = {
        key.value
        for package in PACKAGES
        for file in (CHECKOUT / package).rglob("*.py")
        for call, _ in calls_in(file.read_text())
        for each in call.keywords
        if each.arg == "extra" and isinstance(each.value, ast.Dict)
        for key in each.value.keys
        if isinstance(key, ast.Constant)
    }
    assert used <= {*FIELDS, "of_repeats"}
    assert set(request_ids.NAMES.values()) | set(request_ids.SEVERAL.values()) <= set(FIELDS)


def test_a_line_about_several_names_as_many_everywhere() -> None:
    assert item_ids.MOST_IDS == request_ids.MOST_IDS == ids.MOST_IDS
