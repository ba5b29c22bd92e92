"""Drivers of SQLAlchemy whose connections and errors are not known here are refused, and the known ones are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from client_core.local_database import join
from consumer_sdk.applied import AppliedMessages
from producer_sdk import ConfigurationError
from producer_sdk.fence import TransactionFence
from producer_sdk.outbox import Outbox
from support.databases import server_url

if TYPE_CHECKING:
    from collections.abc import Callable

MAKERS: list[Callable[[Any], object]] = [TransactionFence, Outbox, lambda engine: AppliedMessages(engine, "accounts")]


def engine_of(driver: str, url: str = "mysql://shop@nowhere/shop") -> sa.Engine:
    """An engine of a driver that need not be installed."""
    engine = sa.create_engine(sa.make_url(url).set(drivername="mysql+pymysql"), module=pymysql)
    engine.dialect.driver = driver
    return engine


@pytest.mark.parametrize("make", MAKERS)
def test_engines_of_drivers_that_are_not_known_are_refused(make: Callable[[Any], object]) -> None:
    with pytest.raises(ConfigurationError, match=r"mysql\+mysqlconnector cannot be used.*mysql\+pymysql") as refused:
        make(engine_of("mysqlconnector"))
    assert refused.value.field == "database"


def test_sessions_of_such_engines_are_refused() -> None:
    engine = engine_of("mysqlconnector", server_url("mysql"))
    with Session(engine) as session:
        for call in (
            lambda: join(session).begin(),
            lambda: join(session).join(),
        ):
            with pytest.raises(ConfigurationError, match=r"mysql\+mysqlconnector cannot be used"):
                call()
    engine.dispose()


def test_other_databases_are_refused_too() -> None:
    engine = sa.create_engine("sqlite://", poolclass=sa.NullPool)
    engine.dialect.name = "oracle"
    with pytest.raises(ConfigurationError, match="not on 'oracle'"):
        Outbox(engine)
