"""Backups of a database on a private server, restored to a position of its binary log: as docs/operations.md does."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from support.databases import connect
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.databases import Kind
    from support.private_servers import PrivateServer

_SCRIPT = Path(__file__).parents[2] / "scripts" / "db"

WITH_BINARY_LOG = {"HALFMQ_DB_OPTIONS": "--log-bin=binlog --server-id=1 --sync-binlog=1 --innodb-buffer-pool-size=128M"}
"""Variables of a private server that keeps one; MySQL does by itself."""
_PROGRAMS: dict[Kind, tuple[str, str, str, str]] = {
    "mariadb": ("mariadb-dump", "--master-data=2", "mariadb-binlog", "mariadb"),
    "mysql": ("mysqldump", "--source-data=2", "mysqlbinlog", "mysql"),
}


class Position(NamedTuple):
    """A place in the binary log."""

    file: str
    offset: int


def now(server: PrivateServer) -> Position:
    """Where the binary log of a server ends."""
    statement = "SHOW MASTER STATUS" if server.kind == "mariadb" else "SHOW BINARY LOG STATUS"
    with connect(server.url) as session, session.cursor() as cursor:
        cursor.execute(statement)
        (file, offset, *_), *_ = cursor.fetchall()
        return Position(str(file), int(offset))


def dump(server: PrivateServer, database: str, file: Path) -> None:
    """Writes a consistent copy of a database, with the place in the binary log where it belongs, while clients work."""
    program, with_position, _, _ = _PROGRAMS[server.kind]
    with file.open("wb") as out:
        _run(
            server,
            program,
            ["--single-transaction", "--hex-blob", with_position, "--databases", _name(database)],
            stdout=out,
        )


def restore(file: Path, source: PrivateServer, until: Position, target: PrivateServer, folder: Path) -> None:
    """Loads a copy into another server, and what the source's binary log has after it until a position."""
    *_, reader, client = _PROGRAMS[source.kind]
    begins = _position_of(file)
    with file.open("rb") as copy:
        _run(target, client, [], stdin=copy)
    with connect(source.url) as session, session.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        files = [str(row[0]) for row in cursor.fetchall()]
    wanted = files[files.index(begins.file) : files.index(until.file) + 1]
    changes = folder / "changes.sql"
    options = [f"--start-position={begins.offset}", f"--stop-position={until.offset}", "--disable-log-bin"]
    with changes.open("wb") as out:
        _run(source, reader, ["--read-from-remote-server", *options, *wanted], stdout=out)
    with changes.open("rb") as read:
        _run(target, client, [], stdin=read)


def _position_of(file: Path) -> Position:
    """What a copy says of itself, in a comment near its beginning."""
    with file.open(errors="replace") as lines:
        line = next(line for line in lines if "_LOG_FILE=" in line)
    return Position(line.split("_LOG_FILE='")[1].split("'")[0], int(line.split("_LOG_POS=")[1].split(";")[0]))


def _name(database: str) -> str:
    return urlsplit(database).path.strip("/")


def _run(server: PrivateServer, program: str, options: Sequence[str], **pipes: object) -> None:
    at = urlsplit(server.url)
    where = [f"--host={at.hostname}", f"--port={at.port}", f"--user={at.username}", f"--password={at.password}"]
    command = [str(_SCRIPT), "run", server.kind, program, *where, "--protocol=tcp", *options]
    done = subprocess.run(command, stderr=subprocess.PIPE, check=False, timeout=HANG, **pipes)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr.decode()
