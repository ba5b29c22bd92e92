"""Parsing of endpoint settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from client_core.arguments import refuse
from client_core.errors import ConfigurationError

__all__ = ["Addresses", "parse_endpoints"]

Addresses: TypeAlias = str | Sequence[str]
"""``"host:port"``, several of them separated by commas, or a sequence of them. Any broker of the database works."""


def parse_endpoints(endpoint: Addresses) -> tuple[str, ...]:
    """Parses an endpoint setting.

    Args:
        endpoint: ``host:port`` (IPv6: ``[::1]:port``) or ``unix:path``, one or many.

    Returns:
        The endpoints, each once, in the order given.

    Raises:
        ConfigurationError: There is none, or one of them is invalid.
    """
    if not isinstance(endpoint, str | Sequence) or not all(isinstance(one, str) for one in endpoint):
        refuse("endpoint", "is a text such as 'localhost:8085', or a sequence of them", endpoint)
    listed = endpoint.split(",") if isinstance(endpoint, str) else [part for one in endpoint for part in one.split(",")]
    targets = tuple(dict.fromkeys(part.strip() for part in listed if part.strip()))
    if not targets:
        msg = "no broker endpoint given; pass one such as 'localhost:8085', or several separated by commas"
        raise ConfigurationError(msg, field="endpoint")
    for target in targets:
        if not target.startswith("unix:"):
            _check_host_and_port(target)
    return targets


def _check_host_and_port(target: str) -> None:
    host, colon, port = target.rpartition(":")
    bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    # isascii() too: isdecimal() alone accepts digits of every script.
    plausible = host and colon and not bare_ipv6 and port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16
    if not plausible or "/" in target:
        msg = f"{target!r} is no broker endpoint; write host:port, such as 'localhost:8085' or '[::1]:8081'"
        raise ConfigurationError(msg, field="endpoint")
