"""Applying on Django's connections: an atomic block of its own, or part of one around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from consumer_sdk.applied import AppliedMessages
from ways.deliveries import delivered

if TYPE_CHECKING:
    from ways.shops import Shop


def write(connection: Any, content: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders (content) VALUES (%s)", [content])


@pytest.fixture
def applied(alias: str) -> AppliedMessages:
    from django.db import connections

    made = AppliedMessages(connections[alias], "accounts")
    made.create_tables()
    return made


def test_an_effect_happens_once(shop: Shop, alias: str, applied: AppliedMessages) -> None:
    from django.db import connections, transaction

    connection = connections[alias]
    message = delivered(dedup_key="7")
    with pytest.raises(KeyError), applied.once(connection, message):
        write(connection, "lamp")
        raise KeyError
    for expected in (True, False):
        with applied.once(connection, message) as is_first:
            assert is_first is expected
            write(connection, "lamp" if is_first else "another lamp")
    with transaction.atomic(using=alias):
        write(connection, "chair")
        with applied.once(connection, message) as is_first:
            assert not is_first
            write(connection, "a third lamp")
        with applied.once(connection, delivered(dedup_key="8")) as is_first:
            assert is_first
            write(connection, "desk")
    assert shop.orders() == ["chair", "desk", "lamp"]


def test_what_the_block_around_rolls_back_was_not_applied(shop: Shop, alias: str, applied: AppliedMessages) -> None:
    from django.db import connections, transaction

    message = delivered(dedup_key="7")
    with pytest.raises(KeyError), transaction.atomic(using=alias):
        with applied.once(connections[alias], message):
            write(connections[alias], "lamp")
        raise KeyError
    with applied.once(connections[alias], message) as is_first:
        assert is_first
    assert shop.orders() == []


def test_a_handler_works_with_models_of_its_thread(shop: Shop, alias: str, applied: AppliedMessages) -> None:
    from django.db import connections

    place = applied.handler(lambda message, _: write(connections[alias], message.text))
    for body in ("lamp", "another lamp"):
        place(delivered(body, dedup_key="7"))
    assert shop.orders() == ["lamp"]
