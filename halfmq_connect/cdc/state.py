"""What is stored at the broker with every commit: how far the log was read, and how far tables were copied before.

A table is copied in the order of its primary key, from a view of the data at a known position. When that is cut off,
the rest is copied from a later view: so there is a list of views, each with the last key copied from it. A change in
the log is part of the copy already when the view that has its key has read it; then it is passed over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halfmq_connect.cdc.errors import CannotFollow

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfmq_connect.cdc.positions import Gtid, Position

__all__ = ["State", "TableCopy", "View"]

VERSION = 1


@dataclass
class View:
    """Data as of a position; `to`: the last key that was copied from it, None before the first and after the last."""

    at: Position
    to: list[Any] | None = None


@dataclass
class TableCopy:
    """How far a table was copied.

    Attributes:
        key: The names of its primary key's columns.
        views: What it was copied from.
        done: Whether all of it was.
        chunks: How many pieces it had so far.
    """

    key: list[str]
    views: list[View]
    done: bool = False
    chunks: int = 0

    def last_key(self) -> list[Any] | None:
        """Where to go on."""
        return self.views[-1].to

    def has(self, gtid: Gtid, key: list[Any], is_after: Callable[[list[Any], list[Any]], bool]) -> bool:
        """Whether the change of a row by a transaction is part of the copy."""
        if gtid not in self.views[-1].at:
            return False
        for view in self.views[:-1]:
            if view.to is not None and not is_after(key, view.to):
                return gtid in view.at
        return True


@dataclass
class State:
    """The position, and the tables that were copied; None: the log alone tells of a table by now."""

    position: Position
    tables: dict[str, TableCopy | None] = field(default_factory=dict)

    def prune(self) -> None:
        """Drops what is not needed any more: copies that the log has caught up with."""
        for name, copy in self.tables.items():
            if copy is not None and copy.done and self.position.covers(copy.views[-1].at):
                self.tables[name] = None

    def encode(self, kind: str) -> bytes:
        """As it is stored."""
        tables = {
            name: copy
            and {
                "key": copy.key,
                "views": [[str(view.at), view.to] for view in copy.views],
                "done": copy.done,
                "chunks": copy.chunks,
            }
            for name, copy in self.tables.items()
        }
        told = {"version": VERSION, "server": kind, "position": str(self.position), "tables": tables}
        return json.dumps(told, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, raw: bytes, kind: str, parse: Callable[[str], Position]) -> State:
        """What was stored.

        Raises:
            CannotFollow: It is of another kind of server, or of a later version.
        """
        told = json.loads(raw)
        if told["version"] != VERSION or told["server"] != kind:
            msg = (
                f"the position is of {told['server']}, version {told['version']}; this is {kind}, {VERSION}. Go"
                " to such a server, name the subscription otherwise, or take a new snapshot (--new-snapshot)"
            )
            raise CannotFollow(msg)
        tables = {
            name: copy
            and TableCopy(copy["key"], [View(parse(at), to) for at, to in copy["views"]], copy["done"], copy["chunks"])
            for name, copy in told["tables"].items()
        }
        return cls(parse(told["position"]), tables)
