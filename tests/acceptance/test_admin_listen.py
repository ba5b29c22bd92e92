"""An address of their own for operators: what is served where, with TLS, with workers, and at the end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from acceptance.client import PATIENCE, Client
from broker.embedded import EmbeddedBroker
from broker.errors import ConfigurationError
from broker.rocketmq.protocol import service_pb2, service_pb2_grpc
from broker.server import ADMIN, SERVICES
from broker.storage.engine.connection import Database
from broker.wire.credentials.tokens import hash_of
from halfmq.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    consumer_pb2,
    producer_pb2,
    query_pb2,
    sink_pb2,
    transaction_pb2,
)
from producer_sdk import Admin, Producer
from support.certificates import Authority
from support.command import halfmq
from support.databases import connect as connect_to_database
from support.lock_waits import waiting_transactions
from support.serving import run_serve

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers import BrokerProcess
    from support.databases import AnyKind, Kind

TWO: dict[str, object] = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
UNIMPLEMENTED, UNAUTHENTICATED = grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
METHODS = [
    (service.full_name, method.name)
    for module in (transaction_pb2, producer_pb2, consumer_pb2, admin_pb2, query_pb2, sink_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


async def is_served(channel: Any, service: str, method: str) -> bool:
    """Whether a method is there; on the wire each is one of streams, and one that sends nothing is refused, too."""
    call = channel.stream_stream(f"/{service}/{method}")(timeout=PATIENCE)
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.done_writing()
        async for _ in call:
            pass
    return await call.code() is not UNIMPLEMENTED


async def services_at(channel: Any) -> list[str]:
    """What reflection tells."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    async for answer in call:
        return sorted(each.name for each in answer.list_services_response.service)
    raise AssertionError("no answer")


async def health_at(channel: Any, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE)).status)


async def test_each_service_is_on_one_address(kind: AnyKind, new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker(kind, rocketmq=True, **TWO)
    broker.await_log(f"serves operators on {broker.admin_endpoint}")
    assert broker.admin_endpoint != broker.endpoint
    async with (
        grpc.aio.insecure_channel(broker.endpoint) as main,
        grpc.aio.insecure_channel(broker.admin_endpoint) as admin,
    ):
        for service, method in METHODS:
            here, there = (admin, main) if service == ADMIN else (main, admin)
            assert await is_served(here, service, method), method
            assert not await is_served(there, service, method), method
        assert await services_at(admin) == [
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
            "halfmq.v1.AdminService",
        ]
        assert not await is_served(main, "grpc.reflection.v1alpha.ServerReflection", "ServerReflectionInfo")
        heartbeat = service_pb2.HeartbeatRequest()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service_pb2_grpc.MessagingServiceStub(admin).Heartbeat(heartbeat)
        assert refused.value.code() is UNIMPLEMENTED
        for channel, services in ((main, {*SERVICES} - {ADMIN}), (admin, {ADMIN})):
            assert await health_at(channel) == SERVING
            for service in SERVICES:
                if service in services:
                    assert await health_at(channel, service) == SERVING
                else:
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await health_at(channel, service)
                    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert await asyncio.to_thread(broker.stop) == 0


def test_the_sdk_is_given_either(new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker("sqlite", **TWO)
    with (
        Admin(broker.admin_endpoint) as admin,
        Admin(broker.endpoint) as looking,
        Producer(broker.endpoint) as producer,
    ):
        admin.create_topic("orders")
        sent = producer.send("orders", b"x")
        assert looking.get_message(sent.message_id).message is not None


async def test_without_it_everything_is_on_one(new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker("sqlite")
    assert broker.admin_endpoint == ""
    async with grpc.aio.insecure_channel(broker.endpoint) as channel:
        assert {*SERVICES} <= {*await services_at(channel)}


@pytest.mark.parametrize("optional", [False, True], ids=["TLS", "TLS or not"])
async def test_tls_and_access_are_the_same_on_both(
    new_broker: Callable[..., BrokerProcess], tmp_path: Path, optional: bool
) -> None:
    authority = Authority.make()
    key, chain = authority.issue("broker")
    for name, content in (("key.pem", key), ("chain.pem", chain)):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "tokens.toml").write_text(f'[root]\nsha256 = ["{hash_of("good")}"]\n')
    broker = new_broker(
        "sqlite",
        access=True,
        access_tokens=tmp_path / "tokens.toml",
        access_without_tls=True,
        tls_certificate=tmp_path / "chain.pem",
        tls_key=tmp_path / "key.pem",
        tls_optional=optional,
        **TWO,
    )
    halfmq("access", "grant", "user:root", "all", "*", "*", f"--database={broker.database}")
    trusted = grpc.ssl_channel_credentials(authority.pem)

    async def listed(channel: grpc.aio.Channel, token: str) -> grpc.StatusCode:
        metadata = (("authorization", f"Bearer {token}"),)
        try:
            await admin_pb2_grpc.AdminServiceStub(channel).ListTopics(
                admin_pb2.ListTopicsRequest(), metadata=metadata, timeout=PATIENCE
            )
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    async with (
        grpc.aio.secure_channel(broker.admin_endpoint, trusted) as encrypted,
        grpc.aio.insecure_channel(broker.admin_endpoint) as plain,
    ):
        assert await listed(encrypted, "good") is grpc.StatusCode.OK
        assert await listed(encrypted, "bad") is UNAUTHENTICATED
        assert await listed(plain, "good") is (grpc.StatusCode.OK if optional else grpc.StatusCode.UNAVAILABLE)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await services_at(encrypted)
        assert refused.value.code() is UNAUTHENTICATED
        assert await health_at(encrypted) == SERVING
    assert await asyncio.to_thread(broker.stop) == 0


async def test_workers_share_both(server_kind: Kind, new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker(server_kind, workers=2, **TWO)
    async with Client(broker.endpoint) as client:
        for number in range(8):
            # Each connection leads to one of them.
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(broker.admin_endpoint, options=options) as channel:
                wanted = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=f"orders-{number}"))
                await admin_pb2_grpc.AdminServiceStub(channel).CreateTopic(wanted, timeout=PATIENCE)
                assert await health_at(channel, ADMIN) == SERVING
            assert (await client.send(f"orders-{number}")).position.topic == f"orders-{number}"
        assert not await is_served(client.channel, ADMIN, "ListTopics")
    assert await asyncio.to_thread(broker.stop) == 0
    assert broker.count("serves operators on") == broker.count("stopped") == 2


async def until_somebody_waits(url: str) -> None:
    """Returns when a transaction waits for a row."""
    database = Database(url)
    session = database.session()
    try:
        async with asyncio.timeout(PATIENCE):
            while not waiting_transactions(session):
                session.rollback()
                await asyncio.sleep(0.05)
    finally:
        session.rollback()
        database.release(session)
        database.close()


async def test_a_drain_ends_both_and_lets_calls_end(
    server_kind: Kind, new_broker: Callable[..., BrokerProcess]
) -> None:
    broker = new_broker(server_kind, drain=20, **TWO)
    async with (
        grpc.aio.insecure_channel(broker.admin_endpoint) as channel,
        grpc.aio.insecure_channel(broker.endpoint) as main,
    ):
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        await admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name="orders")))
        watches: list[Any] = [
            health_pb2_grpc.HealthStub(each).Watch(health_pb2.HealthCheckRequest()) for each in (channel, main)
        ]
        for watch in watches:
            assert (await watch.read()).status == SERVING
        with connect_to_database(broker.database) as busy, busy.cursor() as cursor:
            cursor.execute("SELECT * FROM topic FOR UPDATE")
            update = admin_pb2.UpdateTopicRequest(topic="orders")
            update.retention.FromSeconds(7200)
            updating = asyncio.ensure_future(admin.UpdateTopic(update, timeout=PATIENCE))
            await until_somebody_waits(broker.database)
            assert not updating.done()
            stopping = asyncio.create_task(asyncio.to_thread(broker.stop))
            for watch in watches:
                assert (await watch.read()).status == NOT_SERVING
                assert await watch.read() is grpc.aio.EOF
            busy.rollback()
        assert (await updating).topic.retention.seconds == 7200
        assert await stopping == 0
    for endpoint in (broker.endpoint, broker.admin_endpoint):
        host, _, port = endpoint.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))


def test_an_address_that_is_taken_is_named(sqlite_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        run_serve("--database", sqlite_url, "--admin-listen", where).names("admin_listen", where, "another process")


def test_where_one_cannot_be_used_the_other_is_given_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = {"listen": f"127.0.0.1:{port}", "admin_listen": f"127.0.0.1:{taken.getsockname()[1]}"}
        with pytest.raises(ConfigurationError) as refused:
            EmbeddedBroker(**addresses).start()
        assert refused.value.field == "admin_listen"
    with EmbeddedBroker(**addresses) as broker:
        assert (broker.endpoint, broker.admin_endpoint) == (addresses["listen"], addresses["admin_listen"])
        with Admin(broker.admin_endpoint) as admin:
            admin.create_topic("orders")
