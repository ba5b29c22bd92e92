"""Submissions: what an application inserts and commits in a transaction of its own becomes messages, once, in order."""

from __future__ import annotations

import asyncio
import random
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.keys import dedup_hash
from broker.domain.topic import TopicSettings
from broker.maintenance.submission_releaser import SubmissionReleaser
from broker.ports.transactions import Half, PrepareWork
from broker.services.producing import submissions as producing
from broker.services.producing.submissions import SubmissionService
from broker.services.wakeups import Wakeups
from broker.storage.log import submissions, turns
from conformance.submitting import committed, poison, refused, service_on, submit, texts
from conformance.world import HOUR, START, InThread, World, everywhere, log_of, new_id, ok, sending, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

SERVERS = pytest.mark.parametrize("kind", ["mariadb", "mysql"])


@pytest.fixture
def service(store: Store) -> SubmissionService:
    return service_on(store)


async def test_what_is_committed_becomes_messages_in_order(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    assert await service.release() == 0
    own_id = new_id()
    committed(
        world, "first", message_id=own_id, tag="t", message_keys='["k"]', properties='{"a":"ä"}', message_group="g"
    )
    committed(world, "second", "third")
    assert await service.release() == 3
    first, *rest = await everywhere(store, topic)
    assert (first.body, first.tag, first.keys, first.message_group) == (b"first", "t", ["k"], "g")
    assert (first.properties, first.transaction_id, first.stored_at) == ({"a": "ä"}, own_id, START)
    assert [(each.body, each.offset) for each in rest] == [(b"second", 1), (b"third", 2)]
    assert world.count("submission") == 0
    assert world.count("op_record") == 3
    assert await service.release() == 0


@SERVERS
async def test_a_broker_that_stops_in_the_first_turn_of_all_is_not_waited_for(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    """One that waited would let the submission rest, longer than the locks of the stopped one last."""
    await store.start()
    stopped = world.session()
    stopped.begin()
    assert turns.take_turn(stopped, submissions.TURN)
    committed(world, "first")
    assert await service.release() is None
    stopped.rollback()
    assert await service.release() == 1


async def test_it_tells_whether_it_left_some(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    committed(world, *["x"] * (submissions.AT_ONCE + 1))
    assert (await service.release(), service.has_more) == (submissions.AT_ONCE, True)
    assert (await service.release(), service.has_more) == (1, False)
    assert (await service.release(), service.has_more) == (0, False)


async def test_what_was_rolled_back_never_was(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    session = world.session()
    session.begin()
    submit(session, "yacht")
    session.rollback()
    committed(world, "lamp")
    assert await service.release() == 1
    assert await texts(store, topic) == ["lamp"]


@SERVERS
async def test_an_open_transaction_holds_nothing_up_and_comes_later(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    slow = world.session()
    slow.begin()
    submit(slow, "slow")
    committed(world, "fast")
    async with asyncio.timeout(30):
        assert await service.release() == 1
        ok(await store.send([sending(topic, "sent")]))
        assert await service.release() == 0
        slow.commit()
        assert await service.release() == 1
    assert [(each.body, each.offset) for each in await log_of(store, topic)] == [
        (b"fast", 0),
        (b"sent", 1),
        (b"slow", 2),
    ]


@SERVERS
async def test_a_queue_that_is_held_holds_up_only_what_is_for_it(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    other = await store.create_topic("other", TopicSettings(1, HOUR))
    holder = world.session()
    holder.begin()
    holder.fetch("SELECT queue_id FROM queue WHERE queue_id = ? FOR UPDATE", (topic.queue_ids[0],))
    committed(world, "held")
    committed(world, "free", topic="other")
    async with asyncio.timeout(30):
        assert await service.release() == 1
        assert await texts(store, other) == ["free"]
        holder.rollback()
        while not await service.release():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    assert await texts(store, topic) == ["held"]


@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        ({"topic": "nowhere"}, "topic: There is no topic 'nowhere'"),
        ({"topic": "no such name"}, "topic: The name"),
        ({"message_keys": '{"a": 1}'}, "message_keys: It is a JSON list of texts"),
        ({"message_keys": "[1]"}, "message_keys: It is a JSON list of texts"),
        ({"message_keys": "["}, "message_keys, properties: Not JSON"),
        ({"properties": "[]"}, "properties: It is a JSON object"),
        ({"properties": '{"a": 1}'}, "properties: It is a JSON object"),
        ({"properties": '{"halfmq.x": "1"}'}, "the broker's own"),
        ({"priority": 3}, "Priority 3"),
        ({"priority": -1}, "priority: It is at least 0"),
        ({"deliver_at": START + 400 * 24 * HOUR}, "deliver_at: A message may wait"),
        ({"delay": -1}, "delay: It is at least 0"),
        ({"tag": "a|b"}, "A tag must not contain"),
        ({"properties": "[" * 60_000}, "message_keys, properties: Not JSON"),
        ({"message_keys": '["\\ud800"]'}, "message_keys, properties: Not JSON, or no text"),
        ({"properties": '{"a":"\\ud800"}'}, "message_keys, properties: Not JSON, or no text"),
        ({"properties": '{"\\ud800":"a"}'}, "message_keys, properties: Not JSON, or no text"),
    ],
)
async def test_what_cannot_be_a_message_is_put_aside_with_its_cause(
    world: World, store: Store, service: SubmissionService, topic: Topic, columns: dict[str, object], cause: str
) -> None:
    committed(world, "before")
    committed(world, "wrong", **columns)
    committed(world, "after")
    assert await service.release() == 3
    assert await texts(store, topic) == ["before", "after"]
    ((body, why),) = refused(world)
    assert body == "wrong"
    assert cause in why, why
    assert world.count("submission") == 0


async def test_an_id_is_stored_once(world: World, store: Store, service: SubmissionService, topic: Topic) -> None:
    own_id = new_id()
    for _ in range(2):
        committed(world, "same", "same", message_id=own_id)
        await service.release()
    committed(world, "another", message_id=own_id)
    await service.release()
    assert await texts(store, topic) == ["same"]
    assert [each[0] for each in refused(world)] == ["another"]


async def test_a_business_key_is_stored_once(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    committed(world, "first", "second", deduplication_key="7")
    assert await service.release() == 2
    committed(world, "third", deduplication_key="7")
    assert await service.release() == 1
    assert await texts(store, topic) == ["first"]
    assert refused(world) == []


async def test_one_whose_business_key_is_pending_waits_for_the_verdict(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    group = await store.producer_group_id("shop")
    half = Half(topic.topic_id, None, text("half", "orders", dedup_key="7"))
    ok(await store.prepare([PrepareWork(new_id(), group, [half])]))
    committed(world, "waits", deduplication_key="7")
    committed(world, "goes")
    assert await service.release() == 1
    assert await service.release() == 0
    assert world.count("submission") == 1
    assert refused(world) == []


async def test_delays_begin_with_the_release(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    wakeups, due = Wakeups(), []
    wakeups.on_scheduled = due.append
    committed(world, "delayed", delay=5 * SECOND)
    committed(world, "at", deliver_at=START + 2 * SECOND)
    assert await service_on(store, wakeups).release() == 2
    assert due == [START + 2 * SECOND]
    assert await texts(store, topic) == []
    world.clock.pass_time(5 * SECOND)
    await store.move_due()
    assert await texts(store, topic) == ["at", "delayed"]


async def test_a_topic_that_another_broker_deleted_is_refused(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    committed(world, "before")
    assert await service.release() == 1
    other = world.broker("b")
    known = await other.find_topic("orders")
    assert known is not None
    await other.delete_topic(known)
    committed(world, "after")
    while await service.release() == 0:
        assert world.count("submission") == 1
    assert [each[0] for each in refused(world)] == ["after"]


async def test_many_refusals_are_few_lines(
    world: World, service: SubmissionService, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    count = producing.MOST_TOLD + 3
    committed(world, *map(str, range(count)), tag="")
    committed(world, "of no topic", topic="nowhere")
    assert await service.release() == count + 1
    assert len(refused(world)) == count + 1
    assert len({cause for _, cause in refused(world)}) == 2
    assert [record.getMessage() for record in caplog.records][
        -1
    ] == "4 more were refused, and are in refused_submission"
    assert len(caplog.records) == producing.MOST_TOLD + 1


async def test_one_that_the_database_cannot_store_holds_up_no_other(
    world: World, store: Store, service: SubmissionService, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch)
    monkeypatch.setattr(producing, "RESTS_FAILED", (0.01,))
    committed(world, "before", "poison", "after")
    assert await service.release() == 2
    assert await texts(store, topic) == ["before", "after"]
    while not refused(world):
        await asyncio.sleep(0.01)
        await service.release()
    assert refused(world) == [("poison", "The database cannot store it: the driver gives up")]


async def test_what_the_database_fails_at_now_and_then_is_stored(
    world: World, store: Store, service: SubmissionService, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a query that an operator ended; nothing else is stored meanwhile, so it may be the database's fault."""
    real, failures = submissions.log.send, [ValueError("interrupted")] * 5

    def send(*given: object) -> object:
        if failures:
            raise failures.pop()
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(submissions.log, "send", send)
    monkeypatch.setattr(producing, "RESTS_FAILED", (0.01,))
    committed(world, "first", "second", message_group="g")
    async with asyncio.timeout(30):
        while len(await texts(store, topic)) < 2:
            await service.release()
            await asyncio.sleep(0.01)
    assert await texts(store, topic) == ["first", "second"]
    assert refused(world) == []


@SERVERS
async def test_one_that_needs_a_locked_row_holds_up_only_its_message_group(
    world: World, store: Store, service: SubmissionService, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its deduplication key, while the broker that prepares a half message with it stands still."""
    monkeypatch.setattr(producing, "RESTS_LOCKED", (0.5,))
    committed(world, "free", "more")
    committed(world, "waits", message_group="g", deduplication_key="7")
    committed(world, "behind", message_group="g")
    committed(world, "another", message_group="h")
    holder = world.session()
    holder.begin()
    holder.run(
        "INSERT INTO dedup_key (topic_id, dedup_hash, transaction_id, position, expires_at) VALUES (?, ?, ?, 0, ?)",
        (topic.topic_id, dedup_hash("7"), new_id(), START + HOUR),
    )
    async with asyncio.timeout(60):
        while world.count("submission") > 2:
            await service.release()
        assert await texts(store, topic) == ["free", "more", "another"]
        committed(world, "later")
        assert await service.release() == 1
        holder.rollback()
        while world.count("submission"):
            await service.release()
            await asyncio.sleep(0.05)
    assert (await texts(store, topic))[3:] == ["later", "waits", "behind"]


async def test_large_bodies_go_in_parts(world: World, store: Store, service: SubmissionService, topic: Topic) -> None:
    body = "x" * (3 * 1024 * 1024)
    committed(world, *[body] * 5)
    assert await service.release() == 2
    assert await service.release() == 2
    assert await service.release() == 1
    assert len(await texts(store, topic)) == 5


def test_sizes_are_not_read_far_beyond_what_is_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    committed(world, *["s"] * 70, *["x" * 50_000] * 100, *["s"] * 30)
    session = world.session()
    seen: list[int] = []
    fetch = session.fetch

    def counted(sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        found = fetch(sql, parameters)
        seen.append(len(found))
        return found

    session.begin(write=False)
    newest = submissions.newest(session)
    assert newest is not None
    monkeypatch.setattr(session, "fetch", counted)
    taken = submissions.waiting(session, newest, bytes_at_once=200_000)
    assert len(taken) == 70 + 3
    assert seen == [32, 32, 64]
    whole = []
    while taken:
        whole += taken
        taken = submissions.waiting(session, newest, taken[-1].number, at_once=45, bytes_at_once=200_000)
        assert len(taken) <= 45
    assert len(whole) == 200
    assert [each.number for each in whole] == sorted({each.number for each in whole})


async def test_behind_large_ones_few_are_measured(
    world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    real = submissions.waiting

    def waiting(*given: Any, first_page: int, **rest: Any) -> Any:
        measured.append(first_page)
        return real(*given, first_page=first_page, **rest)

    monkeypatch.setattr(submissions, "waiting", waiting)
    committed(world, *["x" * (3 * 1024 * 1024)] * 4, *["small"] * 50)
    assert [len(await store.submissions(1 << 40)) for _ in range(2)] == [2, 2]
    released = []
    while count := await service_on(store).release():
        released.append(count)
    assert released == [2, 2, 50]
    assert measured == [32, 2, 2, 2, 2]


@SERVERS
async def test_one_broker_at_a_time(world: World, store: Store, service: SubmissionService, topic: Topic) -> None:
    committed(world, "lamp")
    assert await service.release() == 1
    frozen = world.session()
    frozen.begin()
    assert submissions.take_turn(frozen, submissions.TURN)
    committed(world, "desk")
    async with asyncio.timeout(30):
        assert await service.release() is None
        frozen.rollback()
        assert await service.release() == 1
    assert await texts(store, topic) == ["lamp", "desk"]


@SERVERS
async def test_writers_and_brokers_at_once(world: World, topic: Topic) -> None:
    """Each group has one writer at a time, which rolls back now and then; two brokers release."""
    writers, each = 4, 60
    stores = [world.broker(name) for name in ("b", "c")]
    expected: dict[str, list[str]] = {}

    def write(group: str) -> None:
        session, chance = world.session(), random.Random(group)
        kept = expected.setdefault(group, [])
        for number in range(each):
            session.begin()
            bodies = [f"{group} {number}.{part}" for part in range(chance.randint(1, 3))]
            for body in bodies:
                submit(session, body, message_group=group)
            if chance.random() < 0.2:
                session.rollback()
            else:
                session.commit()
                kept += bodies

    threads = [InThread(lambda group=f"g{number}": write(group)) for number in range(writers)]
    loops = [SubmissionReleaser(service_on(store), look_interval=0.001) for store in stores]
    for loop in loops:
        loop.start()
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    assert [thread.error for thread in threads] == [None] * writers
    async with asyncio.timeout(60):
        while world.count("submission"):  # noqa: ASYNC110 - the loops tell nobody
            await asyncio.sleep(0.01)
    for loop in loops:
        await loop.stop()
    found: dict[str, list[str]] = {}
    log = await log_of(stores[0], topic)
    for message in log:
        found.setdefault(message.message_group or "", []).append(message.body.decode())
    assert found == expected
    assert [message.offset for message in log] == list(range(len(log)))


@SERVERS
async def test_many_that_need_locked_rows_are_not_waited_for_one_by_one(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    holder = world.session()
    holder.begin()
    for number in range(40):
        group = {"message_group": f"g{number}"} if number % 2 else {}
        committed(world, f"waits {number}", deduplication_key=f"{number}", **group)
        holder.run(
            "INSERT INTO dedup_key (topic_id, dedup_hash, transaction_id, position, expires_at) VALUES (?, ?, ?, 0, ?)",
            (topic.topic_id, dedup_hash(f"{number}"), new_id(), START + HOUR),
        )
    committed(world, "free")
    async with asyncio.timeout(60):
        began = time.monotonic()
        while not await service.release():
            pass
        # One wait of a second, where each of them would have one.
        assert time.monotonic() - began < 20
        assert await texts(store, topic) == ["free"]
        holder.rollback()


async def test_an_operator_submits_again_what_was_refused(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    """The statements of docs/operations.md."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    (statements,) = re.findall(r"^## Submissions\n.*?```sql\n(.*?)```", page, re.S | re.M)
    committed(world, "early", topic="later", tag="t")
    assert await service.release() == 1
    session = world.session()
    session.begin()
    ((number,),) = session.fetch("SELECT submission_id FROM refused_submission")
    for statement in statements.replace("17", str(number)).split(";")[:2]:
        session.run(statement)
    session.commit()
    later = await store.create_topic("later", TopicSettings(1, HOUR))
    assert await service.release() == 1
    assert await texts(store, later) == ["early"]
    assert refused(world) == []


async def test_one_that_is_refused_again_under_its_number_holds_up_nothing(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    for _ in range(2):
        committed(world, "wrong", topic="nowhere", submission_id=7)
        assert await service.release() == 1
    committed(world, "good")
    assert await service.release() == 1
    assert [each[0] for each in refused(world)] == ["wrong"]


async def test_what_was_refused_long_ago_is_deleted(
    world: World, store: Store, service: SubmissionService, topic: Topic
) -> None:
    committed(world, "old", topic="nowhere")
    await service.release()
    world.clock.pass_time(20 * 24 * HOUR)
    committed(world, "new", topic="nowhere")
    await service.release()
    kept = 30 * 24 * HOUR
    assert await store.trim_refused_submissions(kept) == 0
    world.clock.pass_time(11 * 24 * HOUR)
    assert await store.trim_refused_submissions(kept) == 1
    assert [body for body, _ in refused(world)] == ["new"]
