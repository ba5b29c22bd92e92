"""The block that applies a message: the effect and its mark in one transaction, once for each business key."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from consumer_sdk import ConfigurationError
from consumer_sdk.applied import AppliedMessages, NoBusinessKey, by_dedup_key, by_message_id, by_property
from producer_sdk import LocalTransactionEnded
from ways.deliveries import delivered
from ways.shops import FORMS, ORDER, OfDriver

if TYPE_CHECKING:
    from client_core.stored import StoredMessage
    from ways.shops import Shop


@pytest.fixture
def applied(shop: Shop) -> AppliedMessages:
    made = AppliedMessages(shop.engine, "accounts")
    made.create_tables()
    return made


@pytest.mark.parametrize("form", FORMS)
def test_an_effect_happens_once(shop: Shop, applied: AppliedMessages, form: str) -> None:
    first, again = delivered(dedup_key="7"), delivered(dedup_key="7")
    with FORMS[form](shop) as work:
        with applied.once(work.given, first) as is_first:
            assert is_first
            work.write("lamp")
        for message in (first, again):
            with applied.once(work.given, message) as is_first:
                assert not is_first
        with applied.once(work.given, delivered(dedup_key="8")) as is_first:
            assert is_first
            work.write("desk")
    assert shop.orders() == ["desk", "lamp"]


@pytest.mark.parametrize("form", FORMS)
def test_a_block_that_does_not_ask_changes_nothing_the_second_time(
    shop: Shop, applied: AppliedMessages, form: str
) -> None:
    message = delivered(dedup_key="7")
    with FORMS[form](shop) as work:
        with applied.once(work.given, message):
            work.write("lamp")
        with applied.once(work.given, message):
            work.write("another lamp")
    assert shop.orders() == ["lamp"]


@pytest.mark.parametrize("form", FORMS)
def test_an_exception_leaves_neither_effect_nor_mark(shop: Shop, applied: AppliedMessages, form: str) -> None:
    message = delivered(dedup_key="7")
    with FORMS[form](shop) as work:
        with pytest.raises(KeyError), applied.once(work.given, message):
            work.write("lamp")
            raise KeyError
        assert shop.orders() == []
        with applied.once(work.given, message) as is_first:
            assert is_first
            work.write("lamp")
    assert shop.orders() == ["lamp"]


@pytest.mark.parametrize("form", FORMS)
def test_several_messages_in_one_transaction(shop: Shop, applied: AppliedMessages, form: str) -> None:
    messages = [delivered(key, dedup_key=key) for key in ("c", "a", "b", "a")]
    with FORMS[form](shop) as work:
        with applied.once(work.given, messages[2]):
            work.write("b")
        with applied.batch(work.given, messages) as fresh:
            assert fresh == [messages[0], messages[1]]
            for message in fresh:
                work.write(message.text)
        with applied.batch(work.given, messages) as fresh:
            assert fresh == []
    assert shop.orders() == ["a", "b", "c"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_transaction_that_was_ended_inside_is_told(
    shop: Shop, applied: AppliedMessages, form: str, ending: str
) -> None:
    with (
        FORMS[form](shop) as work,
        pytest.raises(LocalTransactionEnded, match="leave its end to the block"),
        applied.once(work.given, delivered(dedup_key="7")),
    ):
        work.write("lamp")
        getattr(work, ending)()
        work.write("yacht")
    assert shop.orders() == (["lamp"] if ending == "commit" else [])


def test_groups_have_effects_of_their_own(shop: Shop, applied: AppliedMessages) -> None:
    other = AppliedMessages(shop.engine, "statistics")
    message = delivered(dedup_key="7")
    for each in (applied, other):
        with Session(shop.engine) as session, each.once(session, message) as is_first:
            assert is_first


@pytest.mark.parametrize(
    ("key", "same", "different"),
    [
        (by_dedup_key, {"dedup_key": "7"}, {"dedup_key": "8"}),
        (by_property("order"), {"order": "7"}, {"order": "8"}),
        (lambda message: message.text, {"body": "7"}, {"body": "8"}),
        (by_property("order"), {"order": "a"}, {"order": "a "}),
        (by_property("order"), {"order": "a"}, {"order": "A"}),
        (by_property("order"), {"order": "é" * 5000}, {"order": "é" * 4999 + "e"}),
    ],
)
def test_what_a_business_key_can_be(shop: Shop, key: object, same: dict[str, str], different: dict[str, str]) -> None:
    applied = AppliedMessages(shop.engine, "accounts", key=key)  # type: ignore[arg-type]
    applied.create_tables()
    firsts = []
    for properties in (same, same, different):
        with Session(shop.engine) as session, applied.once(session, delivered(**properties)) as is_first:
            firsts.append(is_first)
    assert firsts == [True, False, True]


@pytest.mark.parametrize(
    ("key", "properties", "apart"),
    [
        (by_dedup_key, {"dedup_key": "7"}, True),
        (by_property("order"), {"order": "7"}, True),
        (lambda message: message.properties["order"], {"order": "7"}, False),
    ],
)
def test_the_same_key_in_two_topics(shop: Shop, key: object, properties: dict[str, str], apart: bool) -> None:
    applied = AppliedMessages(shop.engine, "accounts", key=key)  # type: ignore[arg-type]
    applied.create_tables()
    firsts = []
    for topic in ("payments", "refunds", "payments", "refunds"):
        with Session(shop.engine) as session, applied.once(session, delivered(topic=topic, **properties)) as is_first:
            firsts.append(is_first)
    assert firsts == [True, apart, False, False]


def test_a_batch_of_two_topics_applies_both(shop: Shop, applied: AppliedMessages) -> None:
    messages = [delivered(topic=topic, dedup_key="7") for topic in ("payments", "refunds", "payments")]
    with Session(shop.engine) as session, applied.batch(session, messages) as fresh:
        assert fresh == messages[:2]


def test_by_its_id_only_a_redelivery_is_known(shop: Shop) -> None:
    applied = AppliedMessages(shop.engine, "accounts", key=by_message_id)
    applied.create_tables()
    message = delivered()
    firsts = []
    for each in (message, message, delivered()):
        with Session(shop.engine) as session, applied.once(session, each) as is_first:
            firsts.append(is_first)
    assert firsts == [True, False, True]


def test_a_message_without_a_key_is_refused(shop: Shop, applied: AppliedMessages) -> None:
    message = delivered(order="7")
    with (
        Session(shop.engine) as session,
        pytest.raises(NoBusinessKey, match=rf"{message.message_id} .* by_dedup_key gave None; send it with"),
        applied.once(session, message),
    ):
        pytest.fail("the block must not run")


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_two_that_apply_the_same_wait_for_each_other(shop: Shop, applied: AppliedMessages, outcome: str) -> None:
    message = delivered(dedup_key="7")
    inside, go_on = threading.Event(), threading.Event()
    firsts: list[bool] = []

    def apply_slowly() -> None:
        with Session(shop.engine) as session, applied.once(session, message) as is_first:
            firsts.append(is_first)
            session.execute(ORDER, {"content": "lamp"})
            inside.set()
            assert go_on.wait(10)
            if outcome == "rollback":
                raise KeyError

    def apply() -> None:
        with Session(shop.engine) as session, applied.once(session, message) as is_first:
            firsts.append(is_first)
            if is_first:
                session.execute(ORDER, {"content": "lamp"})

    def quietly() -> None:
        with contextlib.suppress(KeyError):
            apply_slowly()

    slow, other = threading.Thread(target=quietly), threading.Thread(target=apply)
    slow.start()
    assert inside.wait(10)
    other.start()
    other.join(0.3)
    assert other.is_alive()
    assert firsts == [True]
    go_on.set()
    slow.join(10)
    other.join(10)
    assert firsts == [True, outcome == "rollback"]
    assert shop.orders() == ["lamp"]


def test_a_handler_of_a_function(shop: Shop) -> None:
    applied = AppliedMessages(shop.engine, "accounts", session=sessionmaker(shop.engine))
    applied.create_tables()

    @applied.handler
    def place(message: StoredMessage, session: Session) -> None:
        """Places an order."""
        session.execute(ORDER, {"content": message.text})

    for body in ("lamp", "lamp again"):
        place(delivered(body, dedup_key="7"))
    assert shop.orders() == ["lamp"]
    assert place.__doc__ == "Places an order."


def test_a_handler_with_a_driver(shop: Shop) -> None:
    applied = AppliedMessages(shop.connect, "accounts")
    applied.create_tables()
    place = applied.handler(lambda message, connection: OfDriver(connection).write(message.text))
    for body in ("lamp", "lamp again"):
        place(delivered(body, dedup_key="7"))
    assert shop.orders() == ["lamp"]


def test_a_conflict_has_the_handler_called_again(shop: Shop, applied: AppliedMessages) -> None:
    if shop.kind == "sqlite":
        pytest.skip("SQLite has one writer at a time, and no deadlocks")
    with shop.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE account (name VARCHAR(20) PRIMARY KEY, balance INT)"))
        connection.execute(sa.text("INSERT INTO account VALUES ('a', 0), ('b', 0)"))
    meet = threading.Barrier(2, timeout=10)
    calls: list[str] = []

    def move(message: StoredMessage, connection: sa.Connection) -> None:
        calls.append(message.text)
        one, other = message.text
        add = sa.text("UPDATE account SET balance = balance + 1 WHERE name = :name")
        connection.execute(add, {"name": one})
        if len(calls) <= 2:
            meet.wait()
        connection.execute(add, {"name": other})

    handler = applied.handler(move)
    threads = [threading.Thread(target=handler, args=(delivered(each, dedup_key=each),)) for each in ("ab", "ba")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    with shop.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT balance FROM account ORDER BY name")).scalars().all() == [2, 2]
    # The one that is called again may be first at the lock that the other one waits for, and be given up once more.
    assert len(calls) > 2


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"group": ""}, "group"),
        ({"key": "order"}, "key"),
        ({"table": "a; DROP TABLE orders"}, "table"),
        ({"database": object()}, "database"),
    ],
)
def test_settings_that_cannot_work_are_named(shop: Shop, arguments: dict[str, object], field: str) -> None:
    given: dict[str, object] = {"database": shop.engine, "group": "accounts", **arguments}
    with pytest.raises(ConfigurationError) as refused:
        AppliedMessages(**given)  # type: ignore[arg-type]
    assert refused.value.field == field


def test_an_autocommitting_engine_is_refused(shop: Shop, applied: AppliedMessages) -> None:
    engine = shop.engine.execution_options(isolation_level="AUTOCOMMIT")
    message = delivered(dedup_key="7")
    with pytest.raises(ConfigurationError, match="autocommit off"), engine.connect() as connection:  # noqa: SIM117
        with applied.once(connection, message):
            pytest.fail("the block must not run")
    with Session(shop.engine) as session, applied.once(session, message) as is_first:
        assert is_first
