"""`halfmq doctor` finds what producers, brokers and operators left: checks, retention, deletions, delayed messages."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.ports.audit import AuditOutcome, AuditRecord
from broker.ports.delivery import JoinWork
from broker.ports.diagnosis import DAY, Severity
from broker.ports.epochs import Epoch, SinkWork
from broker.ports.log import SendWork
from broker.ports.transactions import PrepareWork
from broker.storage.catalog.restorations import notice
from conformance.diagnosing import ALL, applies, findings, named, one, results, today
from conformance.restoring import count_from_one, told
from conformance.submitting import committed, service_on
from conformance.world import HOUR, POLICY, acks, commit, decided, half, new_id, ok, prepared, pull, sending, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from broker.storage.engine.connection import Database
    from conformance.world import World

WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL


@pytest.fixture(autouse=True)
def times_of_today(world: World) -> None:
    """The diagnosis reads the database's clock."""
    world.clock.time = today()


@pytest.fixture
def database(world: World) -> Iterator[Database]:
    """Connections of the diagnosis."""
    with closing(world.database()) as opened:
        yield opened


def changed(world: World, sql: str, *values: object) -> None:
    """Changes rows."""
    session = world.session()
    session.begin()
    session.run(sql, values)
    session.commit()


@pytest.mark.parametrize("check", ALL)
async def test_nothing_is_wrong_with_a_database_at_work(
    world: World, store: Store, topic: Topic, database: Database, check: str
) -> None:
    group = await store.create_group("billing", GroupSettings(3), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {}))
    ok(await store.send([sending(topic) for _ in range(20)]))
    await decided(store, commit(await prepared(store, topic)))
    await prepared(store, topic)
    await store.send([SendWork(new_id(), topic.topic_id, 0, text(deliver_at=today() + 60 * SECOND))])
    given = await pull(store, group, topic, limit=10)
    ok(await store.settle(acks(given)))
    assert await store.take_turn("retention", 90 * SECOND)
    assert await store.take_turn("scheduler", 90 * SECOND)
    found = results(database, check)
    assert [each for each in found if each.severity] == []
    assert bool(found) is applies(check, world.kind)


# Checks


async def test_parked_transactions_are_counted_with_the_age_of_the_oldest(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    await prepared(store, topic)
    world.clock.time -= 10 * 60 * SECOND
    for _ in range(2):
        await prepared(store, topic)
    # All checks were sent, and the last one got no answer.
    changed(
        world,
        "UPDATE half_message SET check_state = 2, check_due_at = ? WHERE born_at < ?",
        today(),
        today() - HOUR // 60,
    )
    world.clock.time += 3 * 60 * SECOND
    changed(world, "UPDATE half_message SET check_due_at = ? WHERE check_state = 2", world.clock.time)
    assert len(await store.park_exhausted(100)) == 2
    found = one(findings(database, "stuck-checks"), WARNING, "2 transactions are parked", "for 7.0 min")
    assert "halfmq admin tx list --parked" in found.remedy
    changed(world, "UPDATE half_message SET parked_at = parked_at - ? WHERE check_state = 3", DAY)
    one(findings(database, "stuck-checks"), CRITICAL, "for 24.1 h")


async def test_the_oldest_parked_transaction_is_found_behind_a_thousand_of_another_group(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    first, second = [await store.producer_group_id(name) for name in ("first", "second")]
    ok(await store.prepare([PrepareWork(new_id(), first, [half(topic)]) for _ in range(1100)]))
    ok(await store.prepare([PrepareWork(new_id(), second, [half(topic)])]))
    parked = "UPDATE half_message SET check_state = 3, check_due_at = NULL, parked_at = ? WHERE producer_group_id = ?"
    changed(world, parked, today() - HOUR, first)
    changed(world, parked, today() - 3 * DAY, second)
    words = "more than 1000 transactions are parked", "the oldest for 3.0 d or more (producer group second)"
    one(findings(database, "stuck-checks"), CRITICAL, *words)
    changed(world, parked, today() - HOUR, second)
    one(findings(database, "stuck-checks"), WARNING, "the oldest for 60.0 min or more")


async def test_a_last_check_that_nobody_parks_is_found_behind_a_thousand_of_another_group(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    first, second = [await store.producer_group_id(name) for name in ("first", "second")]
    ok(await store.prepare([PrepareWork(new_id(), first, [half(topic)]) for _ in range(1100)]))
    ok(await store.prepare([PrepareWork(new_id(), second, [half(topic)])]))
    sent = "UPDATE half_message SET check_state = 2, check_due_at = ? WHERE producer_group_id = ?"
    changed(world, sent, today() + 20 * SECOND, first)
    changed(world, sent, today() - 4 * POLICY.interval, second)
    words = "more than 1000 transactions wait", "parked 2.0 min ago: no broker is at work"
    one(findings(database, "stuck-checks"), CRITICAL, *words)


async def test_a_last_check_without_an_answer_is_a_warning_and_one_that_nobody_parks_is_critical(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    await prepared(store, topic)
    changed(world, "UPDATE half_message SET check_state = 2, check_due_at = ?", today() + 20 * SECOND)
    one(findings(database, "stuck-checks"), WARNING, "1 transaction waits for the answer", "halfmq admin tx show")
    changed(world, "UPDATE half_message SET check_due_at = ?", today() - 4 * POLICY.interval)
    one(findings(database, "stuck-checks"), CRITICAL, "parked 2.0 min ago: no broker is at work", "start a broker")


async def test_a_producer_group_whose_checks_nobody_takes_is_named(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    for _ in range(3):
        await prepared(store, topic)
    late = POLICY.first_check + 2 * POLICY.interval
    changed(world, "UPDATE half_message SET check_due_at = check_due_at - ?", late)
    assert findings(database, "producers") == []
    changed(world, "UPDATE half_message SET check_due_at = check_due_at - ?", 2 * POLICY.interval)
    found = one(findings(database, "producers"), WARNING, "3 transactions of the producer group shop", "for 2.0 min")
    assert "start a producer of that group" in found.remedy
    changed(world, "UPDATE half_message SET check_due_at = check_due_at - ?", 20 * POLICY.interval)
    one(findings(database, "producers"), CRITICAL, "for 12.0 min")


async def test_of_many_producer_groups_the_worst_are_named_and_the_others_counted(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    for number in range(13):
        group = await store.producer_group_id(f"shop{number}")
        ok(await store.prepare([PrepareWork(new_id(), group, [half(topic)])]))
        changed(
            world,
            "UPDATE half_message SET check_due_at = ? WHERE producer_group_id = ?",
            today() - (number + 4) * POLICY.interval,
            group,
        )
    found = findings(database, "producers")
    assert len(found) == 11
    assert "group shop12 " in found[0].found
    assert found[-1].found == "3 further producer groups wait for checks"


# Retention


async def test_a_message_that_retention_left_is_found_with_its_topic_and_queue(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    ok(await store.send([sending(topic, "old"), sending(topic, "older")]))
    changed(world, "UPDATE message SET stored_at = ?", today() - HOUR - 200 * SECOND)
    assert findings(database, "retention") == []
    changed(world, "UPDATE message SET stored_at = stored_at - ?", 1800 * SECOND)
    one(findings(database, "retention"), WARNING, "topic orders, queue 0 should have been deleted 33.3 min ago")
    changed(world, "UPDATE message SET stored_at = stored_at - ?", DAY)
    one(findings(database, "retention"), CRITICAL, "24.6 h ago")
    # The remedy: a broker that deletes.
    while await store.trim_queue(topic, topic.queue_ids[0]):
        pass
    assert findings(database, "retention") == []


async def test_of_many_queues_the_latest_are_named_and_the_others_counted(
    world: World, store: Store, database: Database
) -> None:
    wide = await store.create_topic("wide", TopicSettings(300, HOUR))
    ok(await store.send([sending(wide, queue_no=number) for number in range(300)]))
    changed(world, "UPDATE message SET stored_at = ? - queue_id * 1000000", today() - 3 * HOUR)
    found = findings(database, "retention")
    assert [each.found.partition(" should")[0] for each in found[:2]] == [
        "the oldest message of the topic wide, queue 299",
        "the oldest message of the topic wide, queue 298",
    ]
    assert found[-1].found == "295 further ones are behind, too"
    assert len(found) == 6
    group = await store.create_group("slow", GroupSettings(3, keep_unread=True), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [wide], "consumer", {}))
    assert findings(database, "retention") == []


async def test_the_remedy_names_the_broker_that_deletes(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    ok(await store.send([sending(topic)]))
    changed(world, "UPDATE message SET stored_at = ?", today() - 2 * HOUR)
    one(findings(database, "retention"), WARNING, "start a broker: none has deleted anything yet")
    await world.broker("cellar").take_turn("retention", 90 * SECOND)
    one(findings(database, "retention"), WARNING, "log of the broker cellar")
    changed(world, "UPDATE maintenance_turn SET until = ?", today() - 600 * SECOND)
    one(
        findings(database, "retention"),
        WARNING,
        "start a broker: the last one that deleted, cellar, is gone",
        "10.0 min",
    )


async def test_what_a_group_keeps_unread_is_no_fault_of_retention(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    group = await store.create_group("slow", GroupSettings(3, keep_unread=True), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {}))
    ok(await store.send([sending(topic)]))
    changed(world, "UPDATE message SET stored_at = ?", today() - 3 * HOUR)
    assert findings(database, "retention") == []
    changed(world, "UPDATE message SET stored_at = ?", today() - 3 * DAY - HOUR)
    one(findings(database, "retention"), WARNING, "groups with keep_unread have messages kept in 1 queue;", "3.0 d ago")


async def test_records_that_retention_left_are_found(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    group = await store.create_group("billing", GroupSettings(3), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {}))
    ok(await store.send([SendWork(new_id(), topic.topic_id, 0, text(dedup_key="k"))]))
    assert await pull(store, group, topic)
    await store.append_audit([AuditRecord("me", "", "call", "READ", "x", AuditOutcome.ALLOWED)])
    changed(world, "UPDATE op_record SET decided_at = ?", today() - 4 * DAY)
    changed(world, "UPDATE dedup_key SET expires_at = ?", today() - HOUR)
    changed(world, "UPDATE delivery_event SET happened_at = ?", today() - 2 * DAY)
    changed(world, "UPDATE audit_record SET happened_at = ?", today() - 370 * DAY)
    found = findings(database, "retention")
    assert len(found) == 4
    for words in (
        ("a record of who did what", "4.0 d ago"),
        ("an op record", "24.0 h ago"),
        ("a record of a delivery", "24.0 h ago"),
        ("a deduplication key", "60.0 min ago"),
    ):
        named(found, *words)


async def test_half_messages_of_sinks_and_refused_submissions_that_retention_left_are_found(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    group = await store.producer_group_id("%SINK%archive")
    halves = PrepareWork(new_id(), group, [half(topic)], checked=False)
    assert await store.prepare_epoch(SinkWork(Epoch("archive", "query", 0, False), new_id(), halves)) is False
    committed(world, "early", topic="nowhere")
    assert await service_on(store).release() == 1
    assert findings(database, "retention") == []
    changed(world, "UPDATE sink_transaction SET prepared_at = prepared_at - ?", DAY + 600 * SECOND)
    one(findings(database, "retention"), WARNING, "a half message of a sink should have been deleted 10.0 min ago")
    changed(world, "UPDATE refused_submission SET refused_at = refused_at - ?", 33 * DAY)
    found = findings(database, "retention")
    assert len(found) == 2
    assert named(found, "a refused submission should have been deleted 3.0 d ago").severity is CRITICAL
    # The remedy: a broker that deletes.
    world.clock.time = today()
    assert await store.trim_refused_submissions(30 * DAY) == 1
    one(findings(database, "retention"), WARNING, "a half message of a sink")


async def test_the_op_record_of_a_message_that_waits_for_its_time_is_kept_for_good_reason(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    later = SendWork(new_id(), topic.topic_id, 0, text(deliver_at=today() + DAY))
    ok(await store.send([later]))
    changed(world, "UPDATE op_record SET decided_at = ?", today() - 4 * DAY)
    assert findings(database, "retention") == []


async def test_a_deleted_topic_that_is_not_cleared_is_found(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    ok(await store.send([sending(topic)]))
    await store.delete_topic(topic)
    assert findings(database, "deletions") == []
    changed(world, "UPDATE topic SET deleted_at = ?", today() - 1200 * SECOND)
    one(findings(database, "deletions"), WARNING, "messages of 1 deleted topic", "20.0 min ago", "start a broker")


async def test_the_topic_that_was_deleted_first_is_found_behind_a_thousand(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    session = world.session()
    session.begin()
    columns = "name, queue_count, retention, created_at, deleted_at"
    rows = [(f"~gone{number}", 1, HOUR, today(), today()) for number in range(1100)]
    session.insert("topic", columns, [*rows, ("~first", 1, HOUR, today(), today() - 2 * DAY)])
    session.commit()
    one(findings(database, "deletions"), CRITICAL, "messages of more than 1000 deleted topics", "deleted 2.0 d ago")


async def test_a_delayed_message_that_nobody_moves_is_found(
    world: World, store: Store, topic: Topic, database: Database
) -> None:
    for late in (40, 20):
        ok(await store.send([SendWork(new_id(), topic.topic_id, 0, text(deliver_at=today() + 5 * SECOND))]))
        changed(world, "UPDATE scheduled_message SET deliver_at = deliver_at - ?", (late + 5) * SECOND)
    one(findings(database, "scheduled"), WARNING, "2 delayed messages are late, the first by 6", "start a broker")
    changed(world, "UPDATE scheduled_message SET deliver_at = deliver_at - ?", HOUR)
    one(findings(database, "scheduled"), CRITICAL, "the first by 61.")


async def test_a_restore_that_a_broker_noticed_is_told_until_it_is_handled(world: World, database: Database) -> None:
    assert findings(database, "restores") == []
    session = world.session()
    session.begin()
    notice(session, "one", 0, today() - 90 * SECOND)
    session.commit()
    one(findings(database, "restores"), CRITICAL, "the broker 'one' noticed 90.0 s ago", "run `halfmq restored`")
    told(world)
    assert findings(database, "restores") == []
    count_from_one(world)
