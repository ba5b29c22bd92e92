"""Requests with any values in any fields: each is answered with a code, and none is more than the broker foresaw."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import descriptor as descriptors
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acceptance.client import Client
from broker.rocketmq.protocol import Code, definition_pb2, service_pb2
from support.brokers import BrokerProcess
from support.databases import create_database, drop_database, server_url
from support.rocketmq_protocol import Encoding, RawClient, half, message, resource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest_plugins = ["support.rocketmq_fixtures"]

EVERYWHERE = os.environ.get("HALFMQ_ROCKETMQ_EVERYWHERE") == "1"
EXAMPLES = 2000 if os.environ.get("HYPOTHESIS_PROFILE") == "full" else 60
LONGEST_WAIT = 0.02

Kind = descriptors.FieldDescriptor
# What is on either side of a bound, and what looks like something.
TEXTS = [
    *("", " ", "\x00", "\n", "\x7f", "|", "%", "*", "||", "a || b", "x" * 128, "x" * 300, "ü" * 70, "🐙", "halfmq.x"),
    *("%DLQ%x", "n%t", f"01{'A' * 32}", f"01{'a' * 32}", "0" * 32, "1.2.3", "7.7.7", "n > 1 AND TAGS = 'a'", "n >"),
]
NUMBERS = {
    Kind.CPPTYPE_INT32: [0, 1, -1, 2, 31, 32, 33, 128, 999_999_999, 1_000_000_000, 2**31 - 1, -(2**31)],
    Kind.CPPTYPE_INT64: [
        0,
        1,
        -1,
        60,
        43_200,
        43_201,
        86_401,
        2_000_000_000,
        253_402_300_800,
        2**62,
        2**63 - 1,
        -(2**63),
    ],
}


def plain(field: Any) -> st.SearchStrategy[Any]:
    """Values of a field that is no message."""
    kind = field.cpp_type
    if kind == Kind.CPPTYPE_STRING:
        if field.type == Kind.TYPE_BYTES:
            return st.one_of(st.just(b"body"), st.binary(max_size=200))
        return st.one_of(st.sampled_from(TEXTS), st.text(max_size=20))
    if kind == Kind.CPPTYPE_BOOL:
        return st.booleans()
    if kind == Kind.CPPTYPE_FLOAT:
        return st.floats(width=32)
    if kind == Kind.CPPTYPE_ENUM:
        known = [value.number for value in field.enum_type.values]
        return st.sampled_from([*known, 77, -1])
    return st.one_of(st.sampled_from(NUMBERS[kind]), st.integers(NUMBERS[kind][-1], NUMBERS[kind][-2]))


@st.composite
def anything(draw: st.DrawFn, descriptor: Any, depth: int = 0) -> Any:
    """A message with any of its fields set, to any values."""
    made = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if not draw(st.booleans()) or depth > 4:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (plain(field.message_type.fields_by_name[name]) for name in ("key", "value"))
            getattr(made, field.name).update(draw(st.dictionaries(key, value, max_size=3)))
        elif field.message_type is not None:
            inner = anything(field.message_type, depth + 1)
            if field.is_repeated:
                getattr(made, field.name).extend(draw(st.lists(inner, max_size=3)))
            else:
                getattr(made, field.name).CopyFrom(draw(inner))
        elif field.is_repeated:
            getattr(made, field.name).extend(draw(st.lists(plain(field), max_size=4)))
        else:
            setattr(made, field.name, draw(plain(field)))
    return made


@dataclass
class Place:
    """Names and handles that are good, to be mixed with all others."""

    topic: str
    group: str
    transaction_id: str
    receipt_handle: str
    recall_handle: str


def at_home(request: Any, here: Place, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
    """Puts good names into a request, most of the time, so that what stands beside them counts."""
    often = st.sampled_from([True, True, True, False])
    for each in messages_in(request):
        kind = each.DESCRIPTOR.name
        if kind == "Message" and draw(often):
            each.topic.CopyFrom(resource(here.topic))
            if draw(often):
                each.system_properties.message_id = draw(st.sampled_from([f"01{'C' * 31}{n}" for n in range(9)]))
            if each.system_properties.body_encoding == Encoding.GZIP and draw(st.booleans()):
                each.system_properties.body_encoding = Encoding.IDENTITY
        for name, good in (("topic", resource(here.topic)), ("group", resource(here.group))):
            if name in each.DESCRIPTOR.fields_by_name and kind not in ("Message", "DeadLetterQueue") and draw(often):
                getattr(each, name).CopyFrom(good)
        if kind == "MessageQueue" and draw(often):
            each.id = 0
        for name in ("transaction_id", "receipt_handle", "recall_handle"):
            if name in each.DESCRIPTOR.fields_by_name and draw(st.booleans()):
                setattr(each, name, getattr(here, name))
        if "long_polling_timeout" in each.DESCRIPTOR.fields_by_name:
            wait = each.long_polling_timeout
            if not each.HasField("long_polling_timeout") or wait.seconds > 0 or wait.nanos > LONGEST_WAIT * 1e9:
                wait.seconds, wait.nanos = 0, int(LONGEST_WAIT * 1e9)


def messages_in(request: Any) -> list[Any]:
    """A message and all messages in it."""
    found = [request]
    for field, value in request.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else [value]:
            found += messages_in(each)
    return found


METHODS = {method.name: method for method in service_pb2.DESCRIPTOR.services_by_name["MessagingService"].methods}
CALLS = [name for name, method in METHODS.items() if not method.client_streaming]
MORE = ("SendMessage", "ReceiveMessage", "EndTransaction")
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


# What shows that requests got behind what is refused first, where it is not OK.
REACHED = {
    "ReceiveMessage": Code.MESSAGE_NOT_FOUND,
    "UpdateOffset": Code.PRECONDITION_FAILED,
    "SyncLiteSubscription": Code.UNSUPPORTED,
}


@pytest.fixture(scope="module", params=["sqlite", *(["mariadb", "mysql"] if EVERYWHERE else [])])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that is asked anything, and must know an answer."""
    kind = request.param
    folder = tmp_path_factory.mktemp("fuzz")
    database = f"sqlite:///{folder / 'halfmq.db'}" if kind == "sqlite" else create_database(server_url(kind))
    with BrokerProcess(database, rocketmq=True) as broker:
        yield broker
    if kind != "sqlite":
        drop_database(database)
    assert broker.count("incident") == broker.count("[error") == 0, broker.log


@pytest.mark.parametrize("method", CALLS)
def test_every_request_is_answered_with_a_code(target: BrokerProcess, method: str) -> None:
    codes: set[int] = set()
    with asyncio.Runner() as runner:
        raw, here = runner.run(at_work(target.endpoint))

        @settings(fuzzed, max_examples=EXAMPLES * (4 if method in MORE else 1))
        @given(st.data())
        def run(data: st.DataObject) -> None:
            request = data.draw(anything(METHODS[method].input_type))
            at_home(request, here, data.draw)
            codes.add(runner.run(answer(raw, method, request)))

        run()
        runner.run(raw.close())
    assert target.count("incident") == target.count("[error") == 0, target.log
    assert Code.INTERNAL_SERVER_ERROR not in codes
    assert codes <= set(Code.values())
    assert codes & {Code.OK, Code.MULTIPLE_RESULTS, REACHED.get(method)}


async def at_work(endpoint: str) -> tuple[RawClient, Place]:
    """A client, and names and handles that are good."""
    raw = RawClient(endpoint)
    async with Client(endpoint) as native:
        topic, group = await native.make_topic(), await native.make_group()
    (_, later) = (await raw.send(message(topic), message(topic, after=3600))).entries
    transaction = (await raw.send(half(topic))).entries[0].transaction_id
    (handle,) = (await raw.receive_some(group, topic)).handles
    return raw, Place(topic, group, transaction, handle, later.recall_handle)


async def answer(raw: RawClient, method: str, request: Any) -> int:
    if METHODS[method].server_streaming:
        return (await raw.collect(method, request)).code
    answered = await raw.call(method, request)
    if method in ("SendMessage", "AckMessage") and len(answered.entries):
        asked = request.messages if method == "SendMessage" else request.entries
        assert len(answered.entries) == len(asked)
        assert all(entry.status.code for entry in answered.entries)
    return int(answered.status.code)


@fuzzed
@given(st.data())
async def test_all_settings_are_answered_with_a_code(target: BrokerProcess, data: st.DataObject) -> None:
    async with RawClient(target.endpoint) as raw:
        stream = raw.telemetry()
        command = service_pb2.TelemetryCommand(settings=data.draw(anything(definition_pb2.Settings.DESCRIPTOR)))
        await stream.call.write(command)
        told = await stream.next()
        assert told.status.code not in (Code.CODE_UNSPECIFIED, Code.INTERNAL_SERVER_ERROR)
        assert told.HasField("settings") == (told.status.code == Code.OK)
        if told.status.code != Code.OK:
            assert await stream.ended() not in (grpc.StatusCode.OK, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


@fuzzed
@given(st.data())
async def test_what_comes_on_a_stream_does_no_harm(target: BrokerProcess, data: st.DataObject) -> None:
    async with RawClient(target.endpoint) as raw:
        stream = raw.telemetry()
        for command in data.draw(st.lists(anything(service_pb2.TelemetryCommand.DESCRIPTOR), max_size=5)):
            command.ClearField("settings")
            await stream.call.write(command)
        await stream.agree(raw.producer_settings())
