"""The file that says what to subscribe to: TOML, read and checked before anything is connected."""

from __future__ import annotations

import os
import re
import ssl
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client_core.connection import Connection, RetryConfig, TlsConfig
from client_core.errors import ConfigurationError
from halfmq_connect.cdc.errors import WrongSetting

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BrokerSettings", "CdcSettings", "DatabaseSettings", "OutboxSettings", "TableSettings", "read_settings"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,60}")
ORDERS = ("row", "table", "none")


@dataclass(frozen=True)
class BrokerSettings:
    """Where the messages go.

    Attributes:
        endpoint: One broker, `host:port`, or several with commas between them.
        tls_ca: File with the authority that signed the broker's certificate; empty: no TLS.
    """

    endpoint: str
    tls_ca: str = ""


@dataclass(frozen=True)
class DatabaseSettings:
    """Where the changes come from.

    Attributes:
        hosts: Servers, `host:port`, of which any one has all changes; the first one that can be used is.
        user: User of the database.
        password: Its password; from password_file or password_env.
        server_id: Number of this subscription among the servers' replicas, unique among them.
        tls_ca: File with the authority that signed the servers' certificates; empty: as the servers offer.
    """

    hosts: tuple[str, ...]
    user: str
    server_id: int
    password: str = field(default="", repr=False)
    tls_ca: str = ""


@dataclass(frozen=True)
class TableSettings:
    """Tables whose rows are published.

    Attributes:
        match: `database.table`; `*` stands for any characters.
        topic: Topic of their messages.
        columns: Columns to publish; empty: all. The primary key is always among them.
        exclude_columns: Columns not to publish.
        order: What keeps its order for consumers: each `row` for itself, the whole `table`, or `none`.
        snapshot: Whether rows that are there already are published first.
        accept_cascades: Whether tables are accepted that foreign keys change without a trace in the log.
    """

    match: str
    topic: str
    columns: tuple[str, ...] = ()
    exclude_columns: tuple[str, ...] = ()
    order: str = "row"
    snapshot: bool = True
    accept_cascades: bool = False


@dataclass(frozen=True)
class OutboxSettings:
    """A table whose inserted rows are the messages.

    Attributes:
        table: `database.table`, of the form that `halfmq cdc --outbox-sql` shows.
    """

    table: str


@dataclass(frozen=True)
class CdcSettings:
    """A subscription.

    Attributes:
        name: Names it at the broker: it has one position, and one process follows it.
        broker: Where the messages go.
        database: Where the changes come from.
        tables: Tables whose changes are published.
        outbox: A table whose rows are messages.
    """

    name: str
    broker: BrokerSettings
    database: DatabaseSettings
    tables: tuple[TableSettings, ...] = ()
    outbox: OutboxSettings | None = None

    def connection(self) -> Connection:
        """How to reach the brokers; a commit may take long, and is repeated until the session gives up."""
        tls = None
        if self.broker.tls_ca:
            try:
                tls = TlsConfig(Path(self.broker.tls_ca).read_bytes())
            except (ConfigurationError, OSError) as error:
                raise WrongSetting(str(error), field="broker.tls_ca") from None
        try:
            return Connection(self.broker.endpoint, tls, RetryConfig(attempt_timeout=300.0, deadline=600.0))
        except (ConfigurationError, ValueError) as error:
            raise WrongSetting(str(error), field="broker") from None


def read_settings(path: Path, environment: Mapping[str, str] | None = None) -> CdcSettings:
    """Reads the file.

    Raises:
        WrongSetting: It cannot be read, or a setting is missing, unknown or invalid; the error names it.
    """
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise WrongSetting(f"{path} cannot be read: {error}", field="file") from None
    except tomllib.TOMLDecodeError as error:
        raise WrongSetting(f"{path} is not TOML: {error}", field="file") from None
    return settings_of(found, os.environ if environment is None else environment)


def settings_of(found: Mapping[str, Any], environment: Mapping[str, str]) -> CdcSettings:
    """The settings of a parsed file.

    Raises:
        WrongSetting: As read_settings.
    """
    _known(found, {"name", "broker", "database", "table", "outbox"}, "")
    name = _text(found, "name", "")
    if not _NAME.fullmatch(name):
        raise WrongSetting("the name has letters, digits, '-' and '_', 60 at most", field="name")
    database = _section(found, "database")
    settings = CdcSettings(
        name,
        _filled(BrokerSettings, _section(found, "broker"), "broker"),
        _database(database, environment),
        tuple(_table(each, f"table[{index}]") for index, each in enumerate(_list(found, "table"))),
        _filled(OutboxSettings, _section(found, "outbox"), "outbox") if "outbox" in found else None,
    )
    if not settings.tables and settings.outbox is None:
        raise WrongSetting("no table is named: write a [[table]] section, or an [outbox]", field="table")
    if settings.outbox and settings.outbox.table.count(".") != 1:
        raise WrongSetting("write database.table", field="outbox.table")
    settings.connection()
    return settings


def _database(section: Mapping[str, Any], environment: Mapping[str, str]) -> DatabaseSettings:
    given = dict(section)
    file, variable = given.pop("password_file", None), given.pop("password_env", None)
    if "password" in given:
        raise WrongSetting(
            "name a file or a variable that has it: password_file, password_env", field="database.password"
        )
    if file is not None:
        try:
            given["password"] = Path(str(file)).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise WrongSetting(f"cannot be read: {error}", field="database.password_file") from None
    elif variable is not None:
        if str(variable) not in environment:
            raise WrongSetting(f"the variable {variable} is not set", field="database.password_env")
        given["password"] = environment[str(variable)]
    settings: DatabaseSettings = _filled(DatabaseSettings, given, "database")
    for host in settings.hosts:
        if not re.fullmatch(r"(\[[^\]]+\]|[^:\s]+):\d{1,5}", host):
            raise WrongSetting(f"{host!r} is not host:port", field="database.hosts")
    if not settings.hosts:
        raise WrongSetting("name one server, or several", field="database.hosts")
    if not 0 < settings.server_id < 2**32:
        raise WrongSetting("is from 1 to 4294967295, and no other replica has it", field="database.server_id")
    if settings.tls_ca:
        try:
            ssl.create_default_context(cafile=settings.tls_ca)
        except OSError as error:  # Also of a file that has no certificates.
            raise WrongSetting(f"{settings.tls_ca} cannot be used: {error}", field="database.tls_ca") from None
    return settings


def _table(section: Any, place: str) -> TableSettings:
    if not isinstance(section, dict):
        raise WrongSetting("is a section, [[table]]", field="table")
    settings: TableSettings = _filled(TableSettings, section, place)
    if settings.match.count(".") != 1 or not all(settings.match.split(".")):
        raise WrongSetting("write database.table; * stands for any characters", field=f"{place}.match")
    if settings.order not in ORDERS:
        raise WrongSetting(f"is {', '.join(ORDERS)}, not {settings.order!r}", field=f"{place}.order")
    if settings.columns and settings.exclude_columns:
        raise WrongSetting("name columns, or those to exclude", field=f"{place}.exclude_columns")
    return settings


def _filled(kind: Any, section: Mapping[str, Any], place: str) -> Any:
    """An instance of a settings class, with types checked."""
    known = {each.name: each for each in fields(kind)}
    allowed = known.keys() - {"password"} | ({"password"} & section.keys())
    _known(section, set(allowed), place)
    values: dict[str, Any] = {}
    for name, value in section.items():
        wanted = str(known[name].type)
        if wanted.startswith("tuple"):
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise WrongSetting("is a list of texts", field=f"{place}.{name}")
            value = tuple(value)  # noqa: PLW2901
        elif type(value).__name__ != wanted:
            raise WrongSetting(f"is {'a text' if wanted == 'str' else wanted}, not {value!r}", field=f"{place}.{name}")
        values[name] = value
    try:
        return kind(**values)
    except TypeError as error:
        missing = str(error).rpartition(": ")[2]
        raise WrongSetting(f"is missing: {missing}", field=place) from None


def _known(section: Mapping[str, Any], known: set[str], place: str) -> None:
    for name in section:
        if name not in known:
            listed = ", ".join(sorted(known - {"password"}))
            raise WrongSetting(f"is not a setting; there are: {listed}", field=f"{place}.{name}".strip("."))


def _text(found: Mapping[str, Any], name: str, place: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise WrongSetting("is missing, or no text", field=f"{place}.{name}".strip("."))
    return value


def _section(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    if not isinstance(value, dict):
        raise WrongSetting(f"is missing: write a section [{name}]", field=name)
    return value


def _list(found: Mapping[str, Any], name: str) -> list[Any]:
    value = found.get(name, [])
    if not isinstance(value, list):
        raise WrongSetting(f"is a list: write [[{name}]]", field=name)
    return value
