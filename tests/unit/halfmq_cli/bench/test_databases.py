"""The URLs of what a measurement opens."""

from __future__ import annotations

import pytest

from broker.errors import ConfigurationError
from halfmq_cli.bench.databases import for_sqlalchemy


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("mysql://halfmq:secret@db1:3307/shop", "mysql+pymysql://halfmq:secret@db1:3307/shop"),
        ("sqlite:///shop,2.db", "sqlite:///shop,2.db"),
    ],
)
def test_sqlalchemy_takes_the_same_driver(given: str, url: str) -> None:
    assert for_sqlalchemy(given) == url


def test_sqlalchemy_does_not_follow_a_primary() -> None:
    with pytest.raises(ConfigurationError, match="name the primary alone"):
        for_sqlalchemy("mysql://halfmq:secret@db1,db2/shop")
