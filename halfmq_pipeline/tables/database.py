"""URL of a business database."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from consumer_sdk.errors import ConfigurationError

__all__ = ["Database"]

_MYSQL = {"mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql"}
_EXAMPLES = "mysql://user:password@host:3306/shop or sqlite:////data/shop.db"


@dataclass(frozen=True)
class Database:
    """A database of MySQL or MariaDB, or an SQLite file. Its text and its repr omit the password.

    Attributes:
        kind: Which of the two.
        name: The database's name, or the file's.
        host, port, user, password: How to reach a server.
        ssl_ca: PEM file of the authority of the server's certificate; None: the reader's default.
    """

    kind: Literal["mysql", "sqlite"]
    name: str
    host: str = ""
    port: int = 3306
    user: str = ""
    password: str = field(default="", repr=False)
    ssl_ca: str | None = None

    @classmethod
    def parse(cls, url: str) -> Database:
        """Reads a URL in SQLAlchemy's form.

        Raises:
            ConfigurationError: It is not supported; the message never contains the password.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or 3306
            options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
        except ValueError:
            msg = f"the database URL cannot be read; write it as {_EXAMPLES}"
            raise ConfigurationError(msg, field="database") from None
        if parts.scheme == "sqlite":
            # As in SQLAlchemy: three slashes before a relative name, four before an absolute one.
            if parts.netloc or len(parts.path) < 2:
                msg = f"the database URL names no file; write it as {_EXAMPLES}"
                raise ConfigurationError(msg, field="database")
            return cls("sqlite", str(Path(unquote(parts.path[1:])).absolute()))
        if parts.scheme not in _MYSQL:
            msg = f"databases of the kind {parts.scheme!r} cannot be read; write the URL as {_EXAMPLES}"
            raise ConfigurationError(msg, field="database")
        name = unquote(parts.path.strip("/"))
        if not (parts.hostname and parts.username and name):
            msg = f"the database URL needs a user, a host and a database; write it as {_EXAMPLES}"
            raise ConfigurationError(msg, field="database")
        if unknown := sorted(options.keys() - {"ssl_ca", "charset"}):
            msg = f"the database URL has {unknown[0]!r} behind its question mark; only ssl_ca is known"
            raise ConfigurationError(msg, field="database")
        return cls(
            "mysql",
            name,
            parts.hostname,
            port,
            unquote(parts.username),
            unquote(parts.password or ""),
            options.get("ssl_ca"),
        )

    def __str__(self) -> str:
        """The URL without the password."""
        if self.kind == "sqlite":
            return f"sqlite:///{self.name}"
        return f"mysql://{self.user}@{self.host}:{self.port}/{self.name}"

    def without_password(self, error: object) -> str:
        """An error's text, in one line and without the password."""
        text = " ".join(str(error).split())
        return text.replace(self.password, "***") if self.password else text
