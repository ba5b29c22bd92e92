"""Addresses of a database's servers, in a URL: `mysql://user:password@db1:3306,db2:3306,db3/database`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from sqlalchemy.engine import make_url

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

DEFAULT_PORT = 3306
HOSTS = "host"
"""Option of an SQLAlchemy URL that has several servers."""
# As SQLAlchemy reads a URL: a user has no colon and no slash, a password no @.
_AUTHORITY = re.compile(r"(?P<before>[\w+]+://(?:[^:/]*(?::[^@]*)?@)?)(?P<hosts>[^/?]*)(?P<after>.*)", re.DOTALL)
_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d{1,5}))?")
_IN_PLACE = "hosts.invalid"


class WrongAddresses(ValueError):
    """The servers of a URL cannot be read; the text tells why, and has nothing of a password."""


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """`host:port`, with an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(text: str) -> Address:
    """An address.

    Raises:
        WrongAddresses: it is none.
    """
    found = _ADDRESS.fullmatch(unquote(text).strip())
    if found is None or not 0 < int(found["port"] or DEFAULT_PORT) < 1 << 16:
        raise WrongAddresses(f"{text!r} is no host:port")
    return Address(found["ipv6"] or found["host"], int(found["port"] or DEFAULT_PORT))


def read_url(text: str) -> URL:
    """A URL of one server or of several, separated by commas; the first one is also its host and port.

    Raises:
        ArgumentError, ValueError: not a URL.
        WrongAddresses: an address that cannot be read, or twice the same one.
    """
    found = _AUTHORITY.fullmatch(text)
    if found is None or "," not in found["hosts"]:
        url = make_url(text)
    else:
        if "@" in found["hosts"]:
            raise WrongAddresses("write an @ in the user's name or password as %40")
        url = make_url(f"{found['before']}{_IN_PLACE}{found['after']}")
        url = url.update_query_dict({HOSTS: tuple(found["hosts"].split(","))})
    if HOSTS not in url.query:
        return url
    addresses = addresses_of(url)
    if len({(address.host.lower(), address.port) for address in addresses}) < len(addresses):
        raise WrongAddresses("a server is named twice")
    return url.set(host=addresses[0].host, port=addresses[0].port)


def addresses_of(url: URL) -> tuple[Address, ...]:
    """The servers of a URL, in its order."""
    given = url.query.get(HOSTS)
    if given is None:
        return (Address(url.host or "127.0.0.1", url.port or DEFAULT_PORT),)
    return tuple(map(read_address, (given,) if isinstance(given, str) else given))


def shown(url: URL) -> str:
    """The URL without its password, and with all servers."""
    if HOSTS not in url.query:
        return url.render_as_string(hide_password=True)
    one = url.difference_update_query([HOSTS])._replace(host=_IN_PLACE, port=None)
    return one.render_as_string(hide_password=True).replace(_IN_PLACE, ",".join(map(str, addresses_of(url))), 1)
