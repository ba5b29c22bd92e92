"""Databases that are away, brokers that have too much to do, are killed or meet an error, and clients without a key."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import COMMITTED, PREPARED, ROLLED_BACK
from acceptance.client import Client as Native
from broker.embedded import EmbeddedBroker
from broker.rocketmq.consuming import Consuming
from broker.rocketmq.protocol import Code, definition_pb2, service_pb2
from broker.rocketmq.routes import Routes
from faults.mysql_proxy import MySqlProxy, SqlError
from halfmq.v1 import transaction_pb2
from support.brokers import BrokerProcess
from support.databases import connect, create_database, drop_database, server_url
from support.rocketmq_protocol import (
    PATIENCE,
    TIMES,
    RawClient,
    Resolution,
    Source,
    endpoints,
    half,
    message,
    resource,
    signature,
    unique,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    Connect = Callable[..., RawClient]

pytest_plugins = ["support.rocketmq_fixtures"]

HERE = endpoints("127.0.0.1:8081")
AWAY = Code.HA_NOT_AVAILABLE


class Outage:
    """A database behind a proxy, and a broker of little patience."""

    def __init__(self, proxy: MySqlProxy, broker: BrokerProcess) -> None:
        self._proxy = proxy
        self.broker = broker

    @asynccontextmanager
    async def now(self) -> AsyncIterator[None]:
        """No statement is carried out, and connections break, until the end of the block; then it is as before."""
        rule = self._proxy.on_statement(
            ".*", when="before", action=SqlError(1290, "HY000", "The server is read-only"), times=None
        )
        self._proxy.cut_all()
        try:
            yield
        finally:
            self._proxy.clear()
        assert rule.fired
        async with RawClient(self.broker.endpoint) as client, asyncio.timeout(PATIENCE):
            while (await client.send(message("back"))).status.code != Code.OK:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def outage() -> Iterator[Outage]:
    database = create_database(server_url("mariadb"))
    settings = {"rocketmq": True, "auto_create": True, "queue_count": 1, "reconnect_timeout": 0.2, "drain": 2}
    with MySqlProxy.to(database) as proxy, BrokerProcess(proxy.url(database), **settings, **TIMES) as broker:
        yield Outage(proxy, broker)
    drop_database(database)
    assert broker.process.returncode == 0, broker.log
    assert broker.count("[error") == broker.count("incident") == 0, broker.log


async def test_while_the_database_is_away_nothing_is_lost(outage: Outage, connect_raw: Connect) -> None:
    raw = connect_raw(endpoint=outage.broker.endpoint)
    topic, group, other = unique("topic"), unique("group"), unique("other")
    stream = await raw.as_producer(topic)
    await raw.send_one(topic, "before")
    received = await raw.receive_some(group, topic)
    committed, rolled_back = await raw.prepare(topic, "committed"), await raw.prepare(topic, "rolled back")
    new, new_half = message(topic, "new"), half(topic, "new half", recovery=3600)
    async with outage.now():
        for sent in (new, new_half, message(other)):
            answer = await raw.send(sent)
            # With or without an answer for each message: clients look at either.
            assert {answer.status.code, *[entry.status.code for entry in answer.entries]} == {AWAY}
            assert not any(entry.transaction_id for entry in answer.entries)
        for source in (Source.SOURCE_CLIENT, Source.SOURCE_UNSPECIFIED, Source.SOURCE_SERVER_CHECK):
            assert await raw.end(committed, Resolution.COMMIT, source) == AWAY
            assert await raw.end(rolled_back, Resolution.ROLLBACK, source) == AWAY
        assert (await raw.receive(group, topic)).code == AWAY
        assert (await raw.receive(unique("group"), other)).code == AWAY
        assert (await raw.ack(group, topic, *received.handles)).status.code == AWAY
        answer = await raw.change(group, topic, received.handles[0], 60)
        assert (answer.status.code, answer.receipt_handle) == (AWAY, received.handles[0])
        assert await raw.give_up(group, topic, received.handles[0]) == AWAY
        for method, request in (
            ("QueryRoute", service_pb2.QueryRouteRequest(topic=resource(other), endpoints=HERE)),
            ("QueryOffset", service_pb2.QueryOffsetRequest(message_queue={"topic": {"name": topic}})),
            ("RecallMessage", service_pb2.RecallMessageRequest(recall_handle=f"01{'0' * 32}")),
        ):
            assert (await raw.call(method, request)).status.code == AWAY
        # What needs no database is answered, and streams stay.
        assert await raw.heartbeat() == Code.OK
        refused = await raw.telemetry().refused(raw.consumer_settings(unique("group")))
        assert refused == AWAY
    # The same calls again, as clients do; nothing was done half.
    assert [each.body async for each in once_more(raw, new, new_half)] == [b"new", b"new half"]
    assert await raw.end(committed) == Code.OK
    await stream.check_of(rolled_back)
    assert await raw.end(rolled_back, Resolution.ROLLBACK, Source.SOURCE_UNSPECIFIED) == Code.OK
    assert (await raw.ack(group, topic, *received.handles)).status.code == Code.OK
    assert sorted((await raw.receive_some(group, topic)).bodies) == ["committed", "new"]
    async with Native(outage.broker.endpoint) as native:
        states = [(await native.transaction(each)).state for each in (committed, rolled_back)]
        assert states == [COMMITTED, ROLLED_BACK]


async def once_more(raw: RawClient, *messages: Any) -> Any:
    """Sends messages again; those that were stored."""
    for each in messages:
        answer = await raw.send(each)
        if answer.status.code == Code.OK:
            yield each


async def test_an_answer_to_a_check_stays_open_while_the_database_is_away(outage: Outage, connect_raw: Connect) -> None:
    raw = connect_raw(endpoint=outage.broker.endpoint)
    topic = unique("topic")
    stream = await raw.as_producer(topic)
    transaction = await raw.prepare(topic, "half")
    await stream.check_of(transaction)
    async with outage.now():
        assert await raw.end(transaction, Resolution.COMMIT, Source.SOURCE_UNSPECIFIED) == AWAY
    async with Native(outage.broker.endpoint) as native:
        assert (await native.transaction(transaction)).state == PREPARED
        assert await raw.end(transaction, Resolution.COMMIT, Source.SOURCE_UNSPECIFIED) == Code.OK
        found = await native.transaction(transaction)
        assert (found.state, found.op.source) == (COMMITTED, transaction_pb2.VERDICT_SOURCE_CHECK)
        assert transaction_pb2.CHECK_VERDICT_COMMIT in [check.verdict for check in found.checks]


async def test_a_stream_that_is_opened_while_the_database_is_away_is_asked_when_it_is_back(
    outage: Outage, connect_raw: Connect
) -> None:
    raw = connect_raw(endpoint=outage.broker.endpoint)
    topic = unique("topic")
    async with outage.now():
        stream = raw.telemetry()
        assert await stream.refused(raw.producer_settings(topic)) == AWAY
        assert (await raw.send(half(topic))).status.code == AWAY
    transaction = await raw.prepare(topic)
    await stream.check_of(transaction)
    assert await raw.end(transaction, Resolution.ROLLBACK) == Code.OK


async def test_who_waits_for_messages_is_told_of_the_outage(outage: Outage, connect_raw: Connect) -> None:
    raw, other = connect_raw(endpoint=outage.broker.endpoint), connect_raw(endpoint=outage.broker.endpoint)
    topic, group = unique("topic"), unique("group")
    await raw.send_one(topic, "first")
    assert (await raw.receive_some(group, topic)).bodies == ["first"]
    async with outage.now():
        received = await raw.receive(group, topic, wait=20.0)
        assert (received.code, received.messages) == (AWAY, [])
    await other.send_one(topic, "second")
    assert (await raw.receive_some(group, topic)).bodies == ["second"]


async def test_calls_beyond_the_bound_are_refused(connect_raw: Connect) -> None:
    database = create_database(server_url("mariadb"))
    settings = {"rocketmq": True, "auto_create": True, "max_calls": 1, "max_streams": 1}
    with BrokerProcess(database, **settings) as broker:
        raw = connect_raw(endpoint=broker.endpoint)
        topic, group = unique("topic"), unique("group")
        await raw.send_one(topic, "first")
        with connect(database) as busy, busy.cursor() as cursor:
            # No message gets its place, so that whoever sends one waits.
            cursor.execute("SELECT * FROM queue FOR UPDATE")
            calls = [asyncio.create_task(raw.send(message(topic, str(number)))) for number in range(4)]
            done, waiting = await asyncio.wait(calls, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            while len(waiting) > 1:
                more, waiting = await asyncio.wait(waiting, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
                assert more, "a call is neither refused nor the only one"
                done |= more
            busy_code = Code.TOO_MANY_REQUESTS
            assert {call.result().status.code for call in done} == {busy_code}
            assert await raw.heartbeat() == busy_code
            answer = await raw.change(group, topic, "some handle", 1)
            assert (answer.status.code, answer.receipt_handle) == (busy_code, "some handle")
            busy.rollback()
        (last,) = waiting
        assert (await last).status.code == Code.OK
        # Streams are counted apart.
        stream = await raw.as_producer(topic)
        assert (await raw.receive(group, topic)).code == busy_code
        refused = raw.telemetry()
        assert (await refused.next()).status.code == busy_code
        assert await refused.ended() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await stream.hang_up()
        bodies: list[str] = []
        async with asyncio.timeout(PATIENCE):
            while len(bodies) < 2:
                bodies += (await raw.receive(group, topic, wait=1.0)).bodies
        assert len(bodies) == len(set(bodies)) == 2, "what was refused has left nothing behind"
        assert broker.stop() == 0
    drop_database(database)


async def test_an_error_that_nobody_foresaw_is_an_incident(
    tmp_path: Path, connect_raw: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> Any:
        raise RuntimeError("a secret detail")

    async def fail_late(*_: object) -> Any:
        yield service_pb2.ReceiveMessageResponse(status=definition_pb2.Status(code=Code.OK))
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(Routes, "query_route", fail)
    monkeypatch.setattr(Consuming, "receive", fail_late)
    with EmbeddedBroker(tmp_path, rocketmq=True) as broker:
        raw = connect_raw(endpoint=broker.endpoint)
        request = service_pb2.QueryRouteRequest(topic=resource("orders"), endpoints=HERE)
        answer = await raw.call("QueryRoute", request)
        received = await raw.receive("group", "orders")
        # The broker goes on.
        assert await raw.heartbeat() == Code.OK
    for code, text in ((answer.status.code, answer.status.message), (received.code, received.text)):
        assert code == Code.INTERNAL_SERVER_ERROR
        assert "secret" not in text
        (incident,) = re.findall(r"incident (\w+)", text)
        (record,) = [each for each in caplog.records if incident in each.getMessage()]
        assert record.exc_info is not None
        assert "a secret detail" in str(record.exc_info[1])
    caplog.clear()


KEYS = {"shop": "its secret", "other": "another secret"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that wants signatures."""
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "keys"
    file.write_text("# who may call\n" + "".join(f"{key}:{secret}\n" for key, secret in KEYS.items()))
    with BrokerProcess(
        f"sqlite:///{folder / 'halfmq.db'}", rocketmq=True, rocketmq_keys=str(file), auto_create=True
    ) as broker:
        yield broker
    assert broker.count("[error") == 0, broker.log
    assert not any(secret in broker.log for secret in KEYS.values())


METHODS = {
    method.name: method
    for method in service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods
    if not method.client_streaming
}


async def test_a_signature_is_good_for_a_window_of_time_where_one_is_set(tmp_path: Path, connect_raw: Connect) -> None:
    (tmp_path / "keys").write_text("shop:its secret\n")
    keys, request = (
        ("shop", "its secret"),
        service_pb2.QueryRouteRequest(topic=resource("orders"), endpoints=endpoints("mq:1")),
    )
    settings = {"rocketmq_keys": tmp_path / "keys", "rocketmq_signature_window": 300, "auto_create": True}
    with BrokerProcess(f"sqlite:///{tmp_path / 'halfmq.db'}", rocketmq=True, **settings) as broker:
        for seconds, code in ((0, Code.OK), (-200, Code.OK), (-400, Code.UNAUTHORIZED), (400, Code.UNAUTHORIZED)):
            time = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y%m%dT%H%M%SZ")
            headers = {"x-mq-date-time": time, "authorization": signature(*keys, time)}
            raw = connect_raw(endpoint=broker.endpoint, headers=headers)
            assert (await raw.call("QueryRoute", request)).status.code == code


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("keys", [None, ("shop", "wrong"), ("nobody", "its secret"), ("", "")])
async def test_no_call_is_served_without_a_signature(
    guarded: BrokerProcess, connect_raw: Connect, method: str, keys: tuple[str, str] | None
) -> None:
    raw = connect_raw(endpoint=guarded.endpoint, keys=keys)
    request = getattr(service_pb2, METHODS[method].input_type.name)()
    if METHODS[method].server_streaming:
        code = (await raw.collect(method, request)).code
    else:
        code = (await raw.call(method, request)).status.code
    assert code == Code.UNAUTHORIZED


@pytest.mark.parametrize("keys", [None, ("shop", "wrong")])
async def test_no_stream_is_served_without_a_signature(
    guarded: BrokerProcess, connect_raw: Connect, keys: tuple[str, str] | None
) -> None:
    raw = connect_raw(endpoint=guarded.endpoint, keys=keys)
    stream = raw.telemetry()
    # Whatever it says comes too late.
    command = await stream.next()
    assert (command.status.code, command.WhichOneof("command")) == (Code.UNAUTHORIZED, None)
    assert await stream.ended() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("keys", [None, ("shop", "wrong")])
async def test_a_request_without_a_signature_is_not_read(
    guarded: BrokerProcess, connect_raw: Connect, method: str, keys: tuple[str, str] | None
) -> None:
    """On the wire a call with one request is one of streams: it is refused before it has sent any."""
    raw = connect_raw(endpoint=guarded.endpoint, keys=keys)
    async with grpc.aio.insecure_channel(guarded.endpoint) as channel, asyncio.timeout(PATIENCE):
        response = getattr(service_pb2, METHODS[method].output_type.name)
        path = f"/{METHODS[method].containing_service.full_name}/{method}"
        call: Any = channel.stream_stream(path, response_deserializer=response.FromString)(metadata=raw.metadata())
        answer = await call.read()
        assert answer.status.code == Code.UNAUTHORIZED
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("keys", [None, ("shop", "wrong")])
async def test_calls_without_a_signature_are_refused_whatever_their_size(
    guarded: BrokerProcess, connect_raw: Connect, keys: tuple[str, str] | None
) -> None:
    raw = connect_raw(endpoint=guarded.endpoint, keys=keys)
    large = [message("orders", bytes(4_000_000)) for _ in range(5)]
    for _ in range(5):
        answer = await raw.send(*large)
        assert (answer.status.code, len(answer.entries)) == (Code.UNAUTHORIZED, 0)
        stream = raw.telemetry()
        # Whether this arrives, or its stream has ended by then.
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await stream.tell(raw.producer_settings(*["t" * 1000] * 1000))
        assert (await stream.next()).status.code == Code.UNAUTHORIZED
        assert await stream.ended() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("scope", "upper", "time"),
    [
        ("", True, "20260101T080000Z"),
        ("//Rocketmq", False, "20260101T080000Z"),
        ("/cn-hangzhou/RocketMQ", True, "20260101T000000Z"),
        ("", False, "2026-01-01T08:00:00.123456789+08:00"),
    ],
    ids=["Java, C#, Node", "Go", "C++", "Rust"],
)
@pytest.mark.parametrize("key", KEYS)
async def test_every_clients_signature_is_taken(
    guarded: BrokerProcess, connect_raw: Connect, scope: str, upper: bool, time: str, key: str
) -> None:
    authorization = signature(key, KEYS[key], time, scope=scope, upper=upper)
    raw = connect_raw(endpoint=guarded.endpoint, headers={"authorization": authorization, "x-mq-date-time": time})
    topic = unique("topic")
    await raw.as_producer(topic)
    transaction = await raw.prepare(topic, "signed")
    assert await raw.end(transaction) == Code.OK
    assert (await raw.receive_some(unique("group"), topic)).bodies == ["signed"]


def put(file: Path, content: str) -> None:
    """Replaces a file as a whole."""
    new = file.with_suffix(".new")
    new.write_text(content)
    new.replace(file)


async def code_becomes(raw: RawClient, code: int) -> None:
    """Waits until a broker answers so: it looks at its file twice a second."""
    async with asyncio.timeout(PATIENCE):
        while await raw.heartbeat() != code:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_keys_are_replaced_while_it_serves(tmp_path: Path, connect_raw: Connect) -> None:
    file, topic = tmp_path / "keys", unique("topic")
    put(file, "shop:old\n")
    with BrokerProcess(
        f"sqlite:///{tmp_path / 'halfmq.db'}", rocketmq=True, rocketmq_keys=file, auto_create=True, **TIMES
    ) as broker:
        old, new, asking = (
            connect_raw(endpoint=broker.endpoint, keys=("shop", secret)) for secret in ("old", "new", "new")
        )
        stream = await old.as_producer(topic)
        assert await new.heartbeat() == Code.UNAUTHORIZED
        put(file, "shop:old\nshop:new\n")
        await code_becomes(new, Code.OK)
        assert await old.heartbeat() == Code.OK
        transaction = await old.prepare(topic)
        await stream.check_of(transaction)
        waiting = asyncio.create_task(old.receive(unique("group"), topic, wait=20.0))
        put(file, "shop:new\n")
        await code_becomes(old, Code.UNAUTHORIZED)
        # What was open gets nothing any more.
        assert await stream.ended() is grpc.StatusCode.UNAUTHENTICATED
        assert await asking.end(transaction) == Code.OK
        received = await waiting
        assert (received.code, received.messages) == (Code.UNAUTHORIZED, [])
        # A file that cannot be read changes nothing.
        put(file, "shop\n")
        async with asyncio.timeout(PATIENCE):
            while not broker.count("rocketmq_keys", "Line 1 of the file of keys"):
                assert await new.heartbeat() == Code.OK
        assert await new.heartbeat() == Code.OK


async def test_a_broker_that_was_killed_goes_on_where_it_was(tmp_path: Path, connect_raw: Connect) -> None:
    """Its clients may not come back to their streams for minutes, and tell no settings."""
    database = f"sqlite:///{tmp_path / 'halfmq.db'}"
    settings = {"rocketmq": True, "auto_create": True, "queue_count": 1, "first_check": 0.2, "check_interval": 60}
    topic, group = unique("topic"), unique("group")
    with BrokerProcess(database, **settings) as first:
        raw = connect_raw("the producer", endpoint=first.endpoint)
        push = connect_raw("the consumer", endpoint=first.endpoint)
        stream = await raw.as_producer(topic)
        await push.as_consumer(group, topic)
        for body in ("acked before", "acked after"):
            await raw.send_one(topic, body)
        received = await push.receive_some(group, topic, auto_renew=True)
        asked, unasked = await raw.prepare(topic, "asked"), await raw.prepare(topic, "unasked", recovery=1)
        await stream.check_of(asked)
        assert (await push.ack(group, topic, received.handles[0])).status.code == Code.OK
        first.kill()
        assert await stream.ended() is grpc.StatusCode.UNAVAILABLE
    with BrokerProcess(database, **settings) as second:
        raw = connect_raw("the producer", endpoint=second.endpoint)
        push = connect_raw("the consumer", endpoint=second.endpoint)
        # The answer to a check that another process asked, by a client that does not say that it is one.
        assert await raw.end(asked, Resolution.COMMIT, Source.SOURCE_UNSPECIFIED) == Code.OK
        assert (await push.ack(group, topic, received.handles[1])).status.code == Code.OK
        assert (await push.receive_some(group, topic, auto_renew=True)).bodies == ["asked"]
        # A stream that says nothing, and a call that ties its client to the topic.
        silent = raw.telemetry()
        later = await raw.prepare(topic, "later", recovery=3600)
        assert (await silent.check_of(unasked)).message.body == b"unasked"
        for each in (unasked, later):
            assert await raw.end(each, Resolution.ROLLBACK, Source.SOURCE_UNSPECIFIED) == Code.OK
        assert second.stop() == 0
        assert second.count("[error") == second.count("incident") == 0
