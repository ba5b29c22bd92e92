"""What an acknowledged commit survives, and the settings that would break that."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.storage.engine.unsuitable import Unsuitable

FEW = 3


@dataclass(slots=True)
class Promise:
    """What is known of a database's durability, beyond that of one server.

    Attributes:
        survives: what an acknowledged commit survives, as the end of a sentence.
        unsafe: settings under which acknowledged commits could be lost.
        warnings: settings that are allowed but not recommended.
    """

    survives: str
    unsafe: list[Unsuitable] = field(default_factory=list)
    warnings: list[Unsuitable] = field(default_factory=list)


def too_few(what: str, members: int) -> Unsuitable:
    """The warning of a cluster that the loss of one member may stop."""
    servers = "1 server" if members == 1 else f"{members} servers"
    return Unsuitable(
        f"the {what} has {servers}: without one of them no majority may be left, and nothing is written",
        "let it have three",
    )
