"""Which dialect a broker uses for several servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pymysql.err import OperationalError

from broker.storage.engine.cluster.addresses import read_url
from broker.storage.engine.cluster.role import Kind
from broker.storage.engine.dialects import Galera
from broker.storage.engine.dialects.base import Target
from broker.storage.engine.dialects.mariadb import MariaDB

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.storage.engine.dialects.base import Dialect

REFUSED = OperationalError(2003, "refused")


@pytest.fixture
def recognised(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Dialect]:
    """The dialect, by what db1 and db2 say."""

    def recognised(*said: Kind | Exception) -> Dialect:
        server = MariaDB()

        def ask(target: Target, within: float) -> tuple[str, Kind]:
            del within
            assert target.address is not None
            answer = said[int(target.address.host.removeprefix("db")) - 1]
            if isinstance(answer, Exception):
                raise answer
            return "10.11.0-MariaDB", answer

        monkeypatch.setattr(server, "_ask", ask)
        return server.recognised(Target(read_url("mysql://halfmq@db1,db2/halfmq")), 5.0)[0]

    return recognised


@pytest.mark.parametrize(
    "said", [(Kind.ALONE, Kind.GALERA), (Kind.GALERA, Kind.ALONE), (REFUSED, Kind.GALERA), (Kind.GALERA, REFUSED)]
)
def test_one_server_outside_of_its_cluster_does_not_tell_what_the_others_are(
    recognised: Callable[..., Dialect], said: tuple[Kind | Exception]
) -> None:
    """Without the dialect of the cluster its sessions would write to any of its nodes."""
    found = recognised(*said)
    assert (type(found), found.kind) == (Galera, Kind.GALERA)


def test_servers_that_replicate_are_alone(recognised: Callable[..., Dialect]) -> None:
    assert recognised(Kind.ALONE, REFUSED).kind is Kind.ALONE


def test_of_several_errors_the_one_that_is_no_outage_is_told(recognised: Callable[..., Dialect]) -> None:
    with pytest.raises(OperationalError, match="unknown plugin"):
        recognised(OperationalError(1524, "unknown plugin"), REFUSED)
