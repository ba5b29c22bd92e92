"""The fenced blocks of the pages, and the commands in those of a shell."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PAGES = sorted([*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")])
SHELLS = ("bash", "sh")

_BLOCK = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)``` *$", re.S | re.M)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_OPERATORS = {"&&", "||", "|", "&", ";", "(", ")", "{", "}"}


@dataclass(frozen=True, slots=True)
class Listing:
    """A fenced block of a page.

    Attributes:
        page: the page, from the checkout on.
        line: where it begins in its page, from 1.
        language: the first word behind its fence; empty without one.
        text: what is in it.
        is_output: it follows another block, or the words that say so: it is what that one prints.
    """

    page: str
    line: int
    language: str
    text: str
    is_output: bool

    @property
    def first(self) -> str:
        """Its first line, by which it is known."""
        return self.text.partition("\n")[0].strip()

    def __str__(self) -> str:
        """Where it is."""
        return f"{self.page}:{self.line}"


def listings_of(page: Path) -> list[Listing]:
    """All of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(CHECKOUT))
    return [
        Listing(
            name,
            text.count("\n", 0, found.start()) + 1,
            (found["info"].split() or [""])[0],
            found["text"],
            text[: found.start()].endswith(("```\n\n", "It prints:\n\n")),
        )
        for found in _BLOCK.finditer(text)
    ]


def all_listings() -> list[Listing]:
    """Those of all pages."""
    return [listing for page in PAGES for listing in listings_of(page)]


def commands_of(text: str) -> list[list[str]]:
    """The words of each command of a shell listing: without assignments before it, redirections and `$ `."""
    found: list[list[str]] = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        lexer.commenters = ""
        words: list[str] = []
        for word in lexer:
            if word.startswith("#"):
                break
            if word in _OPERATORS:
                found.append(words)
                words = []
            else:
                words.append(word)
        found.append(words)
    return [words for each in found if (words := _command(each))]


def _command(words: list[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or (not kept and (_ASSIGNMENT.match(word) or word in {"export", "time"})):
            skip = False
        elif re.fullmatch(r"\d?[<>]+&?\d?", word):
            skip = not word.endswith(("&1", "&2"))
        else:
            kept.append(word)
    return kept


def listing_with(page: str, first: str) -> Listing:
    """The one block of a page, named from the checkout on, whose first line begins so."""
    (found,) = [each for each in listings_of(CHECKOUT / page) if each.first.startswith(first)]
    return found
