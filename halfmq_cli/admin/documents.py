"""Files of YAML, with the place of each part in the file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from halfmq_cli.admin.ending import USAGE, Ended

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LARGEST = 16 << 20
_MOST_PLACES = 500_000
"""Parts of a document at most: aliases make many of a few."""


@dataclass(frozen=True)
class ReadDocument:
    """What a file holds.

    Attributes:
        name: Name of the file.
        content: Its content.
        places: By path, such as ``topics.orders.queues`` or ``rules[0].kind``, line and column, from 1.
    """

    name: str
    content: Any
    places: Mapping[str, tuple[int, int]]

    def place(self, path: str) -> str:
        """Where a part is, as compilers write it; of one that is not there, where what it belongs to is."""
        while path and path not in self.places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        line, column = self.places.get(path, (1, 1))
        return f"{self.name}:{line}:{column}"


def read_document(file: Path) -> ReadDocument:
    """Reads a file of YAML; - is standard input.

    Raises:
        Ended: It cannot be read, is no YAML, or has a key twice.
    """
    name = "standard input" if str(file) == "-" else str(file)
    try:
        if str(file) == "-":
            text = sys.stdin.read(_LARGEST + 1)
        else:
            with file.open(encoding="utf-8") as opened:
                text = opened.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise Ended(USAGE, f"{name}: is larger than {_LARGEST >> 20} MiB")
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            places: dict[str, tuple[int, int]] = {}
            if root is not None:
                _walk(name, root, "", places)
            content = {} if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except OSError as error:
        raise Ended(USAGE, f"{name}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Ended(USAGE, f"{name}: is not UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        raise Ended(USAGE, f"{name}{where}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise Ended(USAGE, f"{name}: is no YAML: {error}") from None
    except (ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        # By PyYAML: such as the 30th of February, a number of 5000 digits, or a tag without a value.
        raise Ended(USAGE, f"{name}: has a value that YAML cannot read: {error}") from None
    except RecursionError:
        raise Ended(USAGE, f"{name}: is nested too deeply") from None
    return ReadDocument(name, content, places)


def _walk(name: str, node: yaml.Node, path: str, places: dict[str, tuple[int, int]]) -> None:
    """Notes the place of each part, and refuses keys that are there twice, of which YAML would take the last one."""
    if len(places) > _MOST_PLACES:
        raise Ended(USAGE, f"{name}: has more than {_MOST_PLACES} parts")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = f"{path}.{key.value}" if path else str(key.value)
            place = key.start_mark.line + 1, key.start_mark.column + 1
            if below in places:
                first = places[below][0]
                raise Ended(USAGE, f"{name}:{place[0]}:{place[1]}: {below}: is there twice, first in line {first}")
            places[below] = place
            _walk(name, value, below, places)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            below = f"{path}[{number}]"
            places[below] = value.start_mark.line + 1, value.start_mark.column + 1
            _walk(name, value, below, places)
