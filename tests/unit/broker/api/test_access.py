"""The table of calls, and the gate: a real server on loopback, whose calls are let in or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from broker.api.access import CALLS, Gate
from broker.domain.access import Action, Kind, Need, Principal, rule_of
from broker.errors import InvalidArgument
from broker.ports.access import StoredRule
from broker.server import SERVICES
from broker.services.rights import CALLER, EVERYBODY, Caller, Rights
from broker.wire.credentials.authentication import Credentials, address_of
from broker.wire.credentials.files import WatchedFile
from broker.wire.credentials.tokens import hash_of, read_tokens
from broker.wire.interceptor import CallInterceptor
from halfmq.v1 import (
    admin_pb2,
    consumer_pb2,
    message_pb2,
    producer_pb2,
    producer_pb2_grpc,
    query_pb2,
    sink_pb2,
    transaction_pb2,
    transaction_pb2_grpc,
)
from support.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from broker.domain.access import Rule

MODULES = (transaction_pb2, producer_pb2, consumer_pb2, admin_pb2, query_pb2, sink_pb2, health_pb2, reflection_pb2)


def on(*topics: str) -> list[message_pb2.Message]:
    return [message_pb2.Message(topic=topic) for topic in topics]


METHODS = {
    f"/{service.full_name}/{method.name}": method
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def test_every_rpc_has_an_entry_and_every_entry_an_rpc() -> None:
    assert set(CALLS) == set(METHODS)
    assert {path.split("/")[1] for path in METHODS} >= set(SERVICES)


def test_only_health_is_open() -> None:
    assert {path.split("/")[1] for path, entry in CALLS.items() if entry.open} == {"grpc.health.v1.Health"}


@pytest.mark.parametrize("path", sorted(path for path, entry in CALLS.items() if not entry.open))
def test_every_call_needs_something_or_is_judged_by_its_servicer(path: str) -> None:
    """And what it needs can be read from any request, an empty one included."""
    request = GetMessageClass(METHODS[path].input_type)()
    needs = list(CALLS[path].needs(request))
    assert needs or CALLS[path].items
    assert all(isinstance(need, Need) for need in needs)


@pytest.mark.parametrize(
    ("path", "request_", "expected"),
    [
        (
            "ConsumerService/Pull",
            consumer_pb2.PullRequest(consumer_group="g", topics=["a", "b", "a"]),
            [(Action.SUB, Kind.GROUP, "g"), (Action.SUB, Kind.TOPIC, "a"), (Action.SUB, Kind.TOPIC, "b")],
        ),
        (
            "ConsumerService/Consume",
            consumer_pb2.ConsumeRequest(subscribe=consumer_pb2.Subscribe(consumer_group="g", topics=["a"])),
            [(Action.SUB, Kind.GROUP, "g"), (Action.SUB, Kind.TOPIC, "a")],
        ),
        (
            "TransactionService/CheckTransactions",
            transaction_pb2.CheckTransactionsRequest(register=transaction_pb2.RegisterProducer(producer_group="bank")),
            [(Action.CHECK, Kind.GROUP, "bank")],
        ),
        (
            "TransactionService/Prepare",
            transaction_pb2.PrepareRequest(producer_group="bank"),
            [(Action.PUB, Kind.GROUP, "bank")],
        ),
        ("ConsumerService/QueueOffsets", consumer_pb2.QueueOffsetsRequest(topic="a"), [(Action.SUB, Kind.TOPIC, "a")]),
        (
            "ConsumerService/QueueOffsets",
            consumer_pb2.QueueOffsetsRequest(topic="a", consumer_group="g"),
            [(Action.SUB, Kind.TOPIC, "a"), (Action.SUB, Kind.GROUP, "g")],
        ),
        (
            "SinkService/PrepareEpoch",
            sink_pb2.PrepareEpochRequest(epoch=sink_pb2.Epoch(sink="s"), messages=on("a", "b", "a")),
            [(Action.PUB, Kind.SINK, "s"), (Action.PUB, Kind.TOPIC, "a"), (Action.PUB, Kind.TOPIC, "b")],
        ),
        (
            "SinkService/CommitEpoch",
            sink_pb2.CommitEpochRequest(
                epoch=sink_pb2.Epoch(sink="s"), transactions=[sink_pb2.EpochTransaction(messages=on("a"))]
            ),
            [(Action.PUB, Kind.SINK, "s"), (Action.PUB, Kind.TOPIC, "a")],
        ),
        (
            "AdminService/CreateTopic",
            admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name="a")),
            [(Action.CREATE, Kind.TOPIC, "a")],
        ),
        (
            "AdminService/SeekGroup",
            admin_pb2.SeekGroupRequest(group="g", topic="a"),
            [(Action.OPERATE, Kind.GROUP, "g"), (Action.SUB | Action.GET, Kind.TOPIC, "a")],
        ),
        (
            "AdminService/ListTransactions",
            admin_pb2.ListTransactionsRequest(producer_group="g", topic="a"),
            [(Action.LIST, Kind.GROUP, "g"), (Action.LIST, Kind.TOPIC, "a")],
        ),
    ],
)
def test_what_calls_need(path: str, request_: Any, expected: list[tuple[Action, Kind, str]]) -> None:
    assert list(CALLS[f"/halfmq.v1.{path}"].needs(request_)) == [Need(*each) for each in expected]


class Stored:
    """Rules without a database."""

    def __init__(self, *rules: Rule) -> None:
        self.state = (1, len(rules))
        self.rules = list(rules)
        self.reads = 0

    async def rules_state(self) -> tuple[int, int]:
        return self.state

    async def access_rules(self) -> list[StoredRule]:
        self.reads += 1
        return [StoredRule(number, rule, 0, "") for number, rule in enumerate(self.rules)]

    async def grant(self, rule: Rule, made_by: str) -> StoredRule:
        raise NotImplementedError

    async def revoke(self, rule_ids: Any) -> list[StoredRule]:
        raise NotImplementedError


async def test_rights_are_read_again_when_they_have_changed() -> None:
    stored = Stored(rule_of("user:alice", "topic", "a", ["produce"]))
    rights = Rights(stored)
    may = rights.judge(Principal("alice"), Action.PUB, Kind.TOPIC)
    assert not may("a")
    assert await rights.refresh()
    assert may("a")
    assert not await rights.refresh()
    assert stored.reads == 1
    stored.rules, stored.state = [], (1, 0)
    assert may("a")
    assert await rights.refresh()
    assert not may("a")


def test_with_access_off_everything_is_allowed() -> None:
    assert CALLER.get() is EVERYBODY
    assert EVERYBODY.unbounded
    assert EVERYBODY.may(Action.DELETE, Kind.TOPIC, "a")
    assert not EVERYBODY.not_allowed(Action.DELETE, Kind.TOPIC, ["a", "b"], 1)
    assert EVERYBODY.judge(Action.PUB, Kind.GROUP) is None
    assert EVERYBODY.name == ""


async def test_a_caller_without_a_principal_may_nothing() -> None:
    nobody = Caller(None, Rights(Stored(rule_of("user:*", "*", "*", ["all"]))))
    assert not nobody.may(Action.PUB, Kind.TOPIC, "a")
    assert nobody.not_allowed(Action.PUB, Kind.TOPIC, ["a"], 1) == {"a"}
    with pytest.raises(InvalidArgument):
        nobody.not_allowed(Action.PUB, Kind.TOPIC, ["a", "b"], 1)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.1.2.3:5000", "10.1.2.3"),
        ("ipv6:[2001:db8::7]:5000", "2001:db8::7"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", "fe80::1"),
        ("unix:/run/halfmq", ""),
        ("", ""),
    ],
)
def test_addresses(peer: str, address: str) -> None:
    assert address_of(peer) == address


class Sending(producer_pb2_grpc.ProducerServiceServicer):
    """Answers with who called."""

    async def Send(  # noqa: N802
        self, request: producer_pb2.SendRequest, context: Any
    ) -> producer_pb2.SendResponse:
        response = producer_pb2.SendResponse()
        for message in request.messages:
            allowed = CALLER.get().may(Action.PUB, Kind.TOPIC, message.topic)
            response.results.add().position.topic = f"{CALLER.get().name} {allowed}"
        return response


class Checking(transaction_pb2_grpc.TransactionServiceServicer):
    async def CheckTransactions(  # noqa: N802
        self, request_iterator: AsyncIterator[transaction_pb2.CheckTransactionsRequest], context: Any
    ) -> AsyncIterator[transaction_pb2.CheckTransactionsResponse]:
        async for _ in request_iterator:
            answer = transaction_pb2.ProducerRegistered(broker_id=CALLER.get().name)
            yield transaction_pb2.CheckTransactionsResponse(registered=answer)


@dataclass
class Running:
    """A server, and channels to it."""

    port: int
    authority: Authority | None

    def channel(self, client: str | None = None) -> grpc.aio.Channel:
        address = f"127.0.0.1:{self.port}"
        if self.authority is None:
            return grpc.aio.insecure_channel(address)
        key, chain = self.authority.issue(client) if client else (None, None)
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(self.authority.pem, key, chain))


@pytest.fixture(params=["plain", "tls", "mutual tls"])
def security(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
async def running(security: str, tmp_path: Path) -> AsyncIterator[Running]:
    file = tmp_path / "tokens.toml"
    file.write_text(f'[alice]\nsha256 = ["{hash_of("good")}"]\nroles = ["shop"]\n')
    rights = Rights(
        Stored(
            rule_of("role:shop", "topic", "orders", ["produce"]),
            rule_of("role:shop", "group", "shop", ["check"]),
            rule_of("user:cert:till-3", "group", "shop", ["check"], sources=["127.0.0.0/8"]),
        )
    )
    await rights.refresh()
    tokens = WatchedFile(str(file), read_tokens, field="access_tokens")
    credentials = Credentials(tokens, certificates=security == "mutual tls")
    guard = CallInterceptor(max_calls=10, max_streams=10, gate=Gate(credentials, rights))
    server = grpc.aio.server(interceptors=(guard,))
    producer_pb2_grpc.add_ProducerServiceServicer_to_server(Sending(), server)  # type: ignore[abstract]
    transaction_pb2_grpc.add_TransactionServiceServicer_to_server(Checking(), server)  # type: ignore[abstract]
    authority = None if security == "plain" else Authority.make()
    if authority is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pairs = [authority.issue("server")]
        mutual = security == "mutual tls"
        port = server.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials(pairs, authority.pem if mutual else None, mutual)
        )
    await server.start()
    yield Running(port, authority)
    await server.stop(None)


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code(), refused.value.details() or ""


async def first_answer(channel: grpc.aio.Channel, group: str, metadata: Any = None) -> str:
    call = transaction_pb2_grpc.TransactionServiceStub(channel).CheckTransactions(metadata=metadata)
    register = transaction_pb2.RegisterProducer(producer_group=group)
    await call.write(transaction_pb2.CheckTransactionsRequest(register=register))
    answer: Any = await call.read()
    if answer is grpc.aio.EOF:
        raise grpc.aio.AioRpcError(await call.code(), grpc.aio.Metadata(), grpc.aio.Metadata(), await call.details())
    call.cancel()
    return str(answer.registered.broker_id)


BEARER = (("authorization", "Bearer good"),)
ORDERS = producer_pb2.SendRequest(messages=on("orders", "others"))


@pytest.mark.parametrize("security", ["tls", "mutual tls"], indirect=True)
async def test_a_token_over_tls(running: Running, security: str) -> None:
    client = "nobody-in-particular" if security == "mutual tls" else None
    async with running.channel(client) as channel:
        response = await producer_pb2_grpc.ProducerServiceStub(channel).Send(ORDERS, metadata=BEARER)
        assert [result.position.topic for result in response.results] == ["alice True", "alice False"]
        assert await first_answer(channel, "shop", BEARER) == "alice"
        assert await refusal(first_answer(channel, "bank", BEARER)) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "No rule allows this to you.",
        )


@pytest.mark.parametrize("security", ["mutual tls"], indirect=True)
async def test_a_certificate(running: Running) -> None:
    async with running.channel("till-3") as channel:
        assert await first_answer(channel, "shop") == "cert:till-3"
        assert (await refusal(first_answer(channel, "bank")))[0] is grpc.StatusCode.PERMISSION_DENIED
        # What is shown besides it is not made up for by it.
        wrong = (("authorization", "Bearer bad"),)
        assert (await refusal(first_answer(channel, "shop", wrong)))[0] is grpc.StatusCode.UNAUTHENTICATED


async def test_whoever_shows_nothing_or_something_wrong_gets_one_answer(running: Running, security: str) -> None:
    wrong: list[Any] = [
        (("authorization", "Bearer bad"),),
        (("authorization", "Bearer "),),
        (("authorization", "good"),),
        (("authorization", "Basic Z29vZA=="),),
        (("authorization", f"Bearer {hash_of('good')}"),),
        (*BEARER, *BEARER),
        (("authorization", "Bearer " + "x" * 4000),),
    ]
    if security == "plain":
        wrong.append(BEARER)
    if security != "mutual tls":
        wrong.append(None)
    answers = set()
    async with running.channel("till-3" if security == "mutual tls" else None) as channel:
        send = producer_pb2_grpc.ProducerServiceStub(channel).Send
        for metadata in wrong:
            answers.add(await refusal(send(ORDERS, metadata=metadata)))
            answers.add(await refusal(first_answer(channel, "shop", metadata)))
        unknown: Any = channel.unary_unary("/halfmq.v1.ProducerService/Unknown")
        assert (await refusal(unknown(b"")))[0] is grpc.StatusCode.UNIMPLEMENTED
    assert {code for code, _ in answers} == {grpc.StatusCode.UNAUTHENTICATED}
    assert len(answers) == 1


def test_what_waits_for_a_verdict_counts_for_the_quota_of_that_also_from_sinks() -> None:
    waiting = {call for call, entry in CALLS.items() if entry.waits}
    assert waiting == {"/halfmq.v1.TransactionService/Prepare", "/halfmq.v1.SinkService/PrepareEpoch"}
    assert all(CALLS[call].sends is not None for call in waiting)
