"""What a server says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Kind(Enum):
    """What keeps a server's data equal to that of others."""

    ALONE = "a server"
    """Nothing that it tells, or replication of which an operator or a tool decides who accepts writes."""
    GROUP = "MySQL Group Replication"
    GALERA = "Galera"


@dataclass(frozen=True, slots=True)
class Role:
    """What a server says of itself.

    Attributes:
        kind: of its cluster.
        writable: whether it may be written to now.
        reason: why not.
        view: Group Replication: the latest change of the group that it knows, when the group began and how many changes
            ago. The greater one is the later one: who knows of an earlier one has missed what came after it.
        node: Galera: the server's name in the cluster, until it is started again.
        writer: Galera: the name of the node that halfmq's brokers write to, see galera_writer, as this server has it;
            empty: none yet.
        beats: Galera: how often brokers reported that they use the writer, as this server has it.
        cluster: Galera: which cluster it is, and how many changes of its members there were. Nodes that are in it
            together tell the same, but for the moment of a change.
    """

    kind: Kind
    writable: bool
    reason: str = ""
    view: tuple[int, int] = (0, 0)
    node: str = ""
    writer: str = ""
    beats: int = 0
    cluster: tuple[str, int] = ("", 0)


def rows(connection: Any, sql: str, values: Sequence[Any] | None = None) -> Sequence[tuple[Any, ...]]:
    """All rows of a query, on a connection of the driver."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        found: Sequence[tuple[Any, ...]] = cursor.fetchall()
        return found


def variables(connection: Any, *names: str) -> dict[str, str]:
    """Those of these global variables that the server has, by name."""
    listed = ", ".join(f"'{name}'" for name in names)
    return dict(rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})"))


def statuses(connection: Any, *names: str) -> dict[str, str]:
    """Those of these values of the server's status that it has, by name."""
    listed = ", ".join(f"'{name}'" for name in names)
    return dict(rows(connection, f"SHOW GLOBAL STATUS WHERE Variable_name IN ({listed})"))


def is_on(value: str | None) -> bool:
    """Whether a variable is set."""
    return str(value).upper() in {"ON", "1", "YES"}
