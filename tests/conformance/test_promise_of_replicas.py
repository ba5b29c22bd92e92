"""What a source and its replicas keep, by the rights of the brokers' user."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from broker.storage.engine.cluster.replicas import promise_of_replicas
from support.databases import connect, server_url

if TYPE_CHECKING:
    import pymysql

    from support.databases import Kind


def warns(connection: pymysql.Connection, servers: int) -> bool:
    return any("privilege READ_ONLY ADMIN" in str(each) for each in promise_of_replicas(connection, servers).warnings)


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_user_whom_read_only_does_not_bind_is_warned_of(kind: Kind) -> None:
    """It would go on writing to the old source; MySQL's super_read_only binds everybody."""
    url = server_url(kind)
    name = f"bound_{secrets.token_hex(4)}"
    with closing(connect(url, autocommit=True)) as own, own.cursor() as cursor:
        assert warns(own, servers=2) == (kind == "mariadb")
        assert not warns(own, servers=1)
        cursor.execute(f"CREATE USER {name} IDENTIFIED BY 'secret'")
        try:
            where = urlsplit(url)
            theirs = where._replace(netloc=f"{name}:secret@{where.hostname}:{where.port}", path="/information_schema")
            with closing(connect(theirs.geturl())) as bound:
                assert not warns(bound, servers=2)
        finally:
            cursor.execute(f"DROP USER {name}")
