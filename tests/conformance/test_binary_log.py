"""What a broker's sessions keep out of a server's binary log."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from broker.storage.engine.connection import Database
from support.databases import connect, create_database, drop_database, server_url


@pytest.mark.parametrize("privileged", [True, False])
def test_mariadb_logs_no_texts_of_statements_where_the_user_may_decide_that(privileged: bool) -> None:
    server = server_url("mariadb")
    url = create_database(server)
    name = urlsplit(url).path.strip("/")
    user = name.removeprefix("halfmq_")
    try:
        with connect(server, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE USER {user} IDENTIFIED BY 'secret'")
            cursor.execute(f"GRANT ALL ON {name}.* TO {user}")
            if privileged:
                cursor.execute(f"GRANT BINLOG ADMIN ON *.* TO {user}")
        parts = urlsplit(url)
        database = Database(f"mysql://{user}:secret@{parts.hostname}:{parts.port}/{name}")
        session = database.session()
        ((logged, server_default),) = session.fetch(
            "SELECT @@SESSION.binlog_annotate_row_events, @@GLOBAL.binlog_annotate_row_events"
        )
        assert logged == (0 if privileged else server_default)
        database.release(session)
        database.close()
    finally:
        with connect(server, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP USER IF EXISTS {user}")
        drop_database(url)
