"""A run's databases, names and logs, and their clean-up."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from broker.errors import ConfigurationError
from broker.storage.engine.connection import parse_url
from broker.storage.engine.durability import open_database
from broker.storage.retention.topic_deletion import sweep_all

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Place:
    """A run's databases and names.

    Attributes:
        folder: logs, and the files of the embedded default.
        token: part of all names of this run in the broker, and the tag of its messages.
        broker_url: database of the broker.
        producer_url: database of the service that produces.
        consumer_url: database of the service that consumes.
        prefix: prefix of the services' tables.
        shown: name of the database for display.
        own_broker_database: whether the broker's database is in the folder, too.
    """

    folder: Path
    token: str
    broker_url: str
    producer_url: str
    consumer_url: str
    prefix: str
    shown: str
    own_broker_database: bool


@contextlib.contextmanager
def prepared(database: str | None, business_database: str | None, *, keep: bool) -> Iterator[Place]:
    """Creates the place, and removes its folder afterwards, except with `keep` and after a failure.

    Raises:
        ConfigurationError: the database cannot be used.
    """
    token = secrets.token_hex(3)
    embedded = database is None or parse_url(database).get_backend_name() == "sqlite"
    shown = _tried(database, "database") if database is not None else "SQLite, embedded"
    if business_database is not None:
        shown += f"; business tables in {_tried(business_database, 'business_database')}"
    folder = Path(tempfile.mkdtemp(prefix="halfmq-demo-"))
    if embedded:
        broker_url = database or f"sqlite:///{folder / 'broker.db'}"
        place = Place(
            folder,
            token,
            broker_url,
            producer_url=f"sqlite:///{folder / 'producer.db'}",
            consumer_url=f"sqlite:///{folder / 'consumer.db'}",
            prefix="demo_",
            shown=shown,
            own_broker_database=database is None,
        )
    else:
        url = str(database)
        business = business_database or url
        place = Place(folder, token, url, business, business, f"demo_{token}_", shown, own_broker_database=False)
    try:
        yield place
    except BaseException:
        sys.stderr.write(f"The logs of this run are in {folder}\n")
        raise
    if not keep:
        shutil.rmtree(folder)


def sweep_topics(url: str) -> None:
    """Deletes the data of a run's deleted topics from the broker's database: its broker ended before that."""
    opened, _ = open_database(url, answer_timeout=30.0, allow_unsafe=True)
    try:
        sweep_all(opened)
    finally:
        opened.close()


def _tried(url: str, field: str) -> str:
    """Opens a database once, to detect an unusable one early; returns its name for display."""
    try:
        opened, warnings = open_database(url, answer_timeout=30.0)
    except ConfigurationError as error:
        raise ConfigurationError(error.message, field=field) from None
    for warning in warnings:
        sys.stderr.write(f"{field} setting: {warning}\n")
    shown = f"{opened.dialect.name} {opened.version}, {opened.shown_url}".replace(" ,", ",")
    opened.close()
    return shown
