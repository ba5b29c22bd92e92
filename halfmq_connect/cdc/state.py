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

__all__ = ["GoneTables", "State", "TableCopy", "View"]

VERSION = 2
_FIRST = 1
MOST_BYTES = 1024 * 1024
"""Of a state: what a broker stores with an epoch."""
LOOK_BYTES = MOST_BYTES // 2
"""Of a state in which tables that are gone are looked for."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


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

    def reached_by(self, position: Position) -> bool:
        """Whether a position has all that its views have: then no change that comes is part of the copy."""
        return all(position.covers(view.at) for view in self.views)

    def may_have(self, gtid: Gtid) -> bool:
        """Whether a change of some row by a transaction is part of the copy; a later view may be of a server behind."""
        return any(gtid in view.at for view in self.views)

    def has(self, gtid: Gtid, key: list[Any], is_after: Callable[[list[Any], list[Any]], bool]) -> bool:
        """Whether the change of a row by a transaction is part of the copy."""
        if not self.may_have(gtid):
            return False
        for view in self.views[:-1]:
            if view.to is not None and not is_after(key, view.to):
                return gtid in view.at
        return gtid in self.views[-1].at


@dataclass
class State:
    """The position, and the tables that were copied; None: the log alone tells of a table by now."""

    position: Position
    tables: dict[str, TableCopy | None] = field(default_factory=dict)

    def prune(self) -> None:
        """Drops what is not needed any more: copies that the log has caught up with."""
        for name, copy in self.tables.items():
            if copy is not None and copy.done and copy.reached_by(self.position):
                self.tables[name] = None

    def encode(self, kind: str) -> bytes:
        """As it is stored: names of tables by their databases, and of views what the log has not reached yet.

        Raises:
            CannotFollow: It is larger than a broker stores it.
        """
        self.prune()
        followed: dict[str, list[str]] = {}
        copies: dict[str, Any] = {}
        for name, copy in self.tables.items():
            if copy is None:
                database, _, table = name.partition(".")
                followed.setdefault(database, []).append(table)
                continue
            told: dict[str, Any] = {"views": [[str(view.at.beyond(self.position)), view.to] for view in copy.views]}
            copies[name] = told if copy.done else {**told, "key": copy.key, "chunks": copy.chunks}
        state = {"version": VERSION, "server": kind, "position": str(self.position), "tables": followed}
        raw = _encode({**state, "copies": copies} if copies else state).encode()
        if len(raw) > MOST_BYTES:
            msg = (
                f"the state of the subscription has {len(raw)} bytes, with the names of {len(self.tables)} tables; a"
                f" broker stores {MOST_BYTES} (1 MiB). Nothing was skipped. Name fewer tables (match), in several"
                " subscriptions; or take a new snapshot (--new-snapshot), which forgets those that are gone"
            )
            raise CannotFollow(msg)
        return raw

    @classmethod
    def decode(cls, raw: bytes, kind: str, parse: Callable[[str], Position]) -> State:
        """What was stored.

        Raises:
            CannotFollow: It is of another kind of server, or of a later version.
        """
        told = json.loads(raw)
        if told["version"] not in {_FIRST, VERSION} or told["server"] != kind:
            msg = (
                f"the position is of {told['server']}, version {told['version']}; this is {kind}, {VERSION}. Go"
                " to such a server, name the subscription otherwise, or take a new snapshot (--new-snapshot)"
            )
            raise CannotFollow(msg)
        if told["version"] == _FIRST:
            listed = told["tables"]
            names = [name for name, copy in listed.items() if copy is None]
            copies = {name: copy for name, copy in listed.items() if copy is not None}
        else:
            names = [f"{database}.{table}" for database, tables in told["tables"].items() for table in tables]
            copies = told.get("copies", {})
        tables: dict[str, TableCopy | None] = dict.fromkeys(names)
        return cls(parse(told["position"]), tables | {name: _copy(copy, parse) for name, copy in copies.items()})


def _copy(told: dict[str, Any], parse: Callable[[str], Position]) -> TableCopy:
    views = [View(parse(at), to) for at, to in told["views"]]
    return TableCopy(told.get("key", []), views, told.get("done", "key" not in told), told.get("chunks", 0))


class GoneTables:
    """Forgets tables that do not exist any more, when a state becomes large.

    One is forgotten once the log was read up to a place at which the server did not have it: no change of it is ahead.
    If it is made again, it is as one that was never there.
    """

    def __init__(self, state: State, find: Callable[[list[str]], tuple[set[str], Position]]) -> None:
        """Takes the state, and what finds those that are gone, and a position behind all changes of them."""
        self._state = state
        self._find = find
        self._gone: set[str] = set()
        self._behind: Position | None = None
        self._next: int | None = LOOK_BYTES

    def changed(self, tables: set[str]) -> None:
        """The log has changes of these: they stay."""
        self._gone -= tables

    def look(self, size: int) -> None:
        """Looks which tables are gone, when the state has this size and has grown since it looked last.

        Raises:
            CdcError: The server has no answer.
        """
        if self._next is not None and size > self._next:
            names = [name for name, copy in self._state.tables.items() if copy is None]
            self._gone, self._behind = self._find(names)
            self._next = None
        if self._next is None and not self._gone:
            self._next = max(LOOK_BYTES, size + min(LOOK_BYTES // 8, (MOST_BYTES - size) // 2))

    def forget(self) -> None:
        """Forgets those that are gone, if the log was read far enough."""
        if self._behind is not None and self._state.position.covers(self._behind):
            for name in self._gone:
                del self._state.tables[name]
            self._gone, self._behind = set(), None
