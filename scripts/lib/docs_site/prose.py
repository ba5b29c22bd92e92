"""Texts from the code (comments, docstrings, help) as Markdown."""

from __future__ import annotations

import re

_CODE = re.compile(r"(`+)(.+?)\1", re.S)
_LITERAL = re.compile(r"::\n\n((?: {4}.*\n|\n)+(?: {4}.*)?)")


def prose(text: str) -> str:
    """A text whose punctuation is no markup, but for code in backticks and the blocks behind two colons."""
    parts, end = [], 0
    text = re.sub(r"(?m)^::$", "Like this::", f"{text}\n")
    for block in _LITERAL.finditer(text):
        lines = "\n".join(line.removeprefix("    ") for line in block[1].rstrip().splitlines())
        parts += [_inline(text[end : block.start()]), f":\n\n```python\n{lines}\n```\n\n"]
        end = block.end()
    return "".join([*parts, _inline(text[end:])]).strip()


def cell(text: str) -> str:
    """The same in one line, for a table."""
    return " ".join(prose(text).split()).replace("|", "\\|")


def code(text: str) -> str:
    """A piece of code in a table."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def table(heading: list[str], rows: list[list[str]]) -> str:
    """A table; without rows it is nothing."""
    if not rows:
        return ""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _inline(text: str) -> str:
    parts, end = [], 0
    for found in _CODE.finditer(text):
        parts += [_plain(text[end : found.start()]), f"`{found[2]}`" if len(found[1]) <= 2 else found[0]]
        end = found.end()
    return "".join([*parts, _plain(text[end:])])


def _plain(text: str) -> str:
    return re.sub(r"([<*_\\#])", r"\\\1", text)
