"""The docstrings of the code: Google style, in which arguments that belong together share a line."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import griffe

from docs_site.pages import CHECKOUT

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHARED_LINE = re.compile(r"^( +\w+(?:, \w+)+)(?=: )", re.M)


def loaded(packages: Iterable[str]) -> griffe.ModulesCollection:
    """These packages of the checkout, read and not imported; names that they re-export lead to their objects."""
    loader = griffe.GriffeLoader(search_paths=[CHECKOUT], docstring_parser=griffe.Parser.google)
    for package in packages:
        loader.load(package)
    loader.resolve_aliases(implicit=False, external=False)
    return loader.modules_collection


def sections(docstring: griffe.Docstring | None) -> list[griffe.DocstringSection]:
    """The parts of a docstring; names that share a line are one name with commas in it."""
    if docstring is None:
        return []
    text = _SHARED_LINE.sub(lambda found: found[1].replace(", ", ","), docstring.value)
    whole = griffe.Docstring(text, lineno=docstring.lineno, endlineno=docstring.endlineno, parent=docstring.parent)
    return whole.parse(griffe.Parser.google)


class Complaints(logging.Handler):
    """Keeps what griffe has against docstrings, such as an argument that a function does not have.

    Attributes:
        found: the complaints.
    """

    def __init__(self) -> None:
        """Listens from now on."""
        super().__init__(logging.WARNING)
        self.found: list[str] = []
        logging.getLogger("griffe").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Takes one; names that share a line are each known to the function."""
        if not re.search(r"'\w+(,\w+)+'", record.getMessage()):
            self.found.append(record.getMessage())
