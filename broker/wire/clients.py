"""What a call says of the client that makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST_LIBRARY = 100


def place_of(peer: str) -> str:
    """The address and port in gRPC's name of a peer, such as `ipv6:%5B::1%5D:1234`."""
    kind, _, rest = peer.partition(":")
    return unquote(rest) if kind in {"ipv4", "ipv6"} else unquote(peer)


def library_of(context: Any) -> str:
    """The library of a call's client and its version, as its user agent says: the first word, or gRPC's."""
    return library_in(context.invocation_metadata() or ())


def library_in(headers: Iterable[tuple[str, Any]]) -> str:
    """The same, from the headers of a call."""
    for name, value in headers:
        if name == "user-agent" and isinstance(value, str):
            return printable(value.partition(" ")[0])
    return ""


def printable(text: str) -> str:
    """A text of a client as operators may see it: short, without control characters."""
    return "".join(each if each.isprintable() else "?" for each in text[:LONGEST_LIBRARY])
