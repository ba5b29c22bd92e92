"""The source: connections to its servers, and what MySQL and MariaDB do differently."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.constants import CLIENT

from halfmq_connect.cdc.charsets import Charsets
from halfmq_connect.cdc.errors import CannotFollow, CdcError, Interrupted, WrongSetting
from halfmq_connect.cdc.positions import MariaDbPosition, MySqlPosition

if TYPE_CHECKING:
    from halfmq_connect.cdc.config import DatabaseSettings
    from halfmq_connect.cdc.positions import Position

__all__ = ["Source", "connect", "quoted"]

CONNECT_SECONDS = 10
_DENIED = {1044, 1045, 1142, 1143, 1227, 1698}
# No room for the connection, a server that starts or ends, a connection that it ended.
_PASSING = {1040, 1041, 1047, 1053, 1077, 1079, 1080, 1129, 1135, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1927}
_PASSING |= {3032, 3168, 3169, 4031}
# No space, no memory, no lock or no time for the answer; or the table was changed meanwhile.
_PASSING |= {1021, 1037, 1038, 1205, 1206, 1213, 1317, 1412, 1615, 1637, 1969, 3024}


def quoted(*names: str) -> str:
    """Names as identifiers of a statement."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def connect(settings: DatabaseSettings, host: str, **options: Any) -> pymysql.Connection:
    """A connection to one of the source's servers.

    Raises:
        WrongSetting: The server refuses the user.
        Interrupted: It cannot be reached.
    """
    name, _, port = host.rpartition(":")
    given: dict[str, Any] = {
        "read_timeout": 60,
        "write_timeout": 60,
        "charset": "utf8mb4",
        "autocommit": True,
        **options,
    }
    if settings.tls_ca:
        given["ssl"] = {"ca": settings.tls_ca}
    try:
        return pymysql.connect(
            host=name.strip("[]"),
            port=int(port),
            user=settings.user,
            password=settings.password,
            connect_timeout=CONNECT_SECONDS,
            client_flag=CLIENT.MULTI_RESULTS,
            **given,
        )
    except pymysql.err.OperationalError as error:
        if error.args[0] in _DENIED:
            raise WrongSetting(f"{host} refuses the user {settings.user}: {error.args[1]}", field="user") from None
        raise Interrupted(f"{host} cannot be reached: {error.args[-1]}") from error
    except OSError as error:
        raise Interrupted(f"{host} cannot be reached: {error}") from error


class Source:
    """A server of the source, and a connection for questions."""

    def __init__(self, settings: DatabaseSettings, host: str) -> None:
        """Connects.

        Raises:
            WrongSetting: The server refuses the user, or is too old.
            Interrupted: It cannot be reached.
        """
        self.settings = settings
        self.host = host
        self.connection = connect(settings, host)
        self.version = str(self.ask("SELECT VERSION()")[0][0])
        self.mariadb = "mariadb" in self.version.lower()
        self.number = tuple(int(each) for each in re.findall(r"\d+", self.version)[:2])
        least = (10, 6) if self.mariadb else (8, 0)
        if self.number < least:
            msg = f"{host} runs {self.version}; MySQL 8.0 or MariaDB 10.6 are needed, or later"
            raise WrongSetting(msg, field="hosts")

    @property
    def kind(self) -> str:
        """`mariadb` or `mysql`."""
        return "mariadb" if self.mariadb else "mysql"

    def ask(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query.

        Raises:
            WrongSetting: The user may not ask this.
            Interrupted: The connection was lost, or the server has no answer now.
            CannotFollow: The server refuses the question.
        """
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(statement, values or None)
                return list(cursor.fetchall())
        except (pymysql.err.MySQLError, OSError) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> CdcError:
        code, text = (error.args[0], error.args[-1]) if error.args else (0, repr(error))
        of_driver = not isinstance(code, int) or code < 1000 or 2000 <= code < 2100
        if of_driver or isinstance(error, OSError):
            return Interrupted(f"the connection to {self.host} was lost: {text}")
        if code in _DENIED:
            return WrongSetting(f"the user {self.settings.user} lacks a right: {text}", field="user")
        if code in _PASSING:
            return Interrupted(f"{self.host} has no answer now: {text}")
        return CannotFollow(f"{self.host} refuses a question: {text} ({code})")

    def variables(self, *names: str) -> dict[str, str]:
        """Global variables of the server; missing ones are left out."""
        marks = ", ".join(["%s"] * len(names))
        found = self.ask(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names)
        return {name.lower(): value for name, value in found}

    def charsets(self) -> Charsets:
        """The character sets of all collations."""
        # MariaDB has collations without a number of their own since 10.10, and tells there which ones they stand for.
        applicable = self.mariadb and self.number >= (10, 10)
        table = "COLLATION_CHARACTER_SET_APPLICABILITY" if applicable else "COLLATIONS"
        found = self.ask(f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{table} WHERE ID IS NOT NULL")
        return Charsets({int(number): name for number, name in found if name})

    def executed(self) -> Position:
        """What the server has in its binary log."""
        if self.mariadb:
            return MariaDbPosition.parse(str(self.ask("SELECT @@GLOBAL.gtid_binlog_pos")[0][0] or ""))
        return MySqlPosition.parse(str(self.ask("SELECT @@GLOBAL.gtid_executed")[0][0]))

    def parse(self, position: str) -> Position:
        """A position of this kind of server."""
        return MariaDbPosition.parse(position) if self.mariadb else MySqlPosition.parse(position)

    def subtract(self, one: str, other: str) -> str:
        """The GTIDs of one set that are not in the other (MySQL)."""
        return str(self.ask("SELECT GTID_SUBTRACT(%s, %s)", (one, other))[0][0]).replace("\n", "")

    def close(self) -> None:
        """Closes the connection."""
        self.connection.close()
