"""The last look at a server, on a connection that is about to be used."""

from __future__ import annotations

import pytest

from broker.storage.engine.dialects import Galera
from broker.storage.engine.dialects.base import Dialect
from broker.storage.engine.dialects.mariadb import MariaDB
from broker.storage.engine.dialects.mysql import MySQL


class Frozen:
    """A connection to a server that has stood still since the log-in; it is its own cursor."""

    _read_timeout = 30.0
    waited: float | None = None

    def cursor(self) -> Frozen:
        return self

    def __enter__(self) -> Frozen:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def execute(self, *statement: object) -> None:
        self.waited = self._read_timeout
        raise TimeoutError(statement)


@pytest.mark.parametrize("dialect", [MySQL(), MariaDB(), Galera()])
def test_a_server_that_stands_still_is_not_waited_for_as_for_a_statement(dialect: Dialect) -> None:
    connection = Frozen()
    with pytest.raises(TimeoutError):
        dialect.take_part(connection, "cluster_writer", 1.5)
    assert connection.waited == 1.5
    assert connection._read_timeout == 30.0
