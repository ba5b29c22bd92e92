"""Reference page of all metrics: names, types, labels and texts, read from the code that makes them."""

from __future__ import annotations

import ast
import re

from docs_site.pages import CHECKOUT
from docs_site.prose import cell, code, table

SOURCES = {
    "Brokers": ("broker/metrics/*.py", "halfmq_cli/gathering.py"),
    "Relays, cdc, bridges": ("halfmq_connect/cli/metrics.py",),
}
"""Where the metrics of each kind of program are made."""
KINDS = {
    "Counter": "counter",
    "CounterMetricFamily": "counter",
    "Histogram": "histogram",
    "InfoMetricFamily": "info",
    "counter": "counter",
    "gauge": "gauge",
}
"""What makes a metric, and of which type."""
_NAME = re.compile(r"(halfmq|rocketmq)_[a-z_]+")
_TEXT = re.compile(r"# HELP (\w+) (.+)\n# TYPE \w+ (\w+)")

Metric = tuple[str, str, str, str]
"""Name, type, labels, meaning."""


def pages() -> dict[str, str]:
    """The page."""
    text = "# All metrics\n\nMade from the code. [Metrics](../metrics.md) explains them and what to watch.\n"
    for heading in SOURCES:
        rows = [[code(name), kind, labels, cell(told)] for name, kind, labels, told in found_in(heading)]
        text += f"\n## {heading}\n\n{table(['metric', 'type', 'labels', 'meaning'], rows)}"
    return {"reference/metrics.md": text}


def found_in(heading: str) -> list[Metric]:
    """The metrics of a kind of program, by name."""
    found: set[Metric] = set()
    for pattern in SOURCES[heading]:
        for file in sorted(CHECKOUT.glob(pattern)):
            reader = _Reader()
            reader.visit(ast.parse(file.read_text(encoding="utf-8")))
            found |= reader.found
    return sorted(found)


class _Reader(ast.NodeVisitor):
    """Goes through a module in its order, and knows what names stand for there: texts and lists of labels."""

    def __init__(self) -> None:
        self.found: set[Metric] = set()
        self._known: dict[str, object] = {}

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._known[target.id] = self._value(node.value)
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for each, value in zip(target.elts, node.value.elts, strict=True):
                    self._known[getattr(each, "id", "")] = self._value(value)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        kind = KINDS.get(getattr(node.func, "id", ""))
        values = [self._value(argument) for argument in node.args]
        values += [self._value(each.value) for each in node.keywords if each.arg == "labels"]
        if kind and values and isinstance(values[0], str) and _NAME.fullmatch(values[0]):
            name = f"{values[0]}_info" if kind == "info" else values[0]
            self._add(name, kind, values[2] if len(values) > 2 else [], values[1])

    def visit_Tuple(self, node: ast.Tuple) -> None:
        self.generic_visit(node)
        values = [self._value(each) for each in node.elts]
        if (
            len(values) == 3
            and isinstance(values[0], str)
            and _NAME.fullmatch(values[0])
            and isinstance(values[1], str)
        ):
            self._add(values[0], "gauge", [], values[1])  # a row of a loop that makes a gauge of each

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            for name, told, kind in _TEXT.findall(node.value):
                self._add(name, kind, ["worker"], told)

    def _add(self, name: str, kind: str, labels: object, told: object) -> None:
        if not isinstance(labels, list) or not isinstance(told, str):
            msg = f"{name}: its labels and its text cannot be read from the code"
            raise TypeError(msg)
        self.found.add((name, kind, ", ".join(map(code, labels)), told))

    def _value(self, node: ast.expr) -> object:
        match node:
            case ast.Constant(value=str() as text):
                return text
            case ast.Name(id=name):
                return self._known.get(name)
            case ast.Dict(keys=keys):
                return [self._value(key) for key in keys if key is not None]
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [each for part in parts for each in self._several(part)]
        return None

    def _several(self, part: ast.expr) -> list[object]:
        if isinstance(part, ast.Starred):
            value = self._value(part.value)
            return value if isinstance(value, list) else []
        return [self._value(part)]
