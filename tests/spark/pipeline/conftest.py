"""Jobs of the pipeline see no difference between databases through a broker: one is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.brokers import BrokerProcess
from support.databases import create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="package")
def broker() -> Iterator[BrokerProcess]:
    """A broker on MariaDB."""
    url = create_database(server_url("mariadb"))
    with BrokerProcess(url) as process:
        yield process
    drop_database(url)
