"""Transactions over TLS: from clients to the broker, and from the broker to its database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from acceptance.client import PATIENCE
from consumer_sdk import AsyncConsumer, QueueReader
from halfmq.v1 import admin_pb2, admin_pb2_grpc
from producer_sdk import Admin, Producer, TlsConfig
from support.certificates import Authority
from support.databases import connect as connect_to_database
from support.databases import in_ci

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.shared_brokers import Brokers


async def _topics(endpoint: str, credentials: grpc.ChannelCredentials | None) -> int:
    channel = grpc.aio.secure_channel(endpoint, credentials) if credentials else grpc.aio.insecure_channel(endpoint)
    async with channel:
        listed = await admin_pb2_grpc.AdminServiceStub(channel).ListTopics(
            admin_pb2.ListTopicsRequest(), timeout=PATIENCE
        )
    return len(listed.topics)


async def test_clients_need_the_right_certificates(new_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    authority, other = Authority.make(), Authority.make()
    key, chain = authority.issue("broker")
    for name, content in (("key.pem", key), ("chain.pem", chain), ("ca.pem", authority.pem)):
        (tmp_path / name).write_bytes(content)
    broker = new_broker(
        "sqlite",
        tls_certificate=tmp_path / "chain.pem",
        tls_key=tmp_path / "key.pem",
        tls_client_ca=tmp_path / "ca.pem",
    )
    client = authority.issue("client")
    good = grpc.ssl_channel_credentials(authority.pem, *client)
    assert await _topics(broker.endpoint, good) == 0
    for bad in (
        None,
        grpc.ssl_channel_credentials(authority.pem),
        grpc.ssl_channel_credentials(authority.pem, *other.issue("stranger")),
        grpc.ssl_channel_credentials(other.pem, *client),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await _topics(broker.endpoint, bad)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_certificates_are_replaced_while_the_broker_serves(
    new_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """New connections use the new ones; those that do not fit together, or are none, change nothing."""
    old, new = Authority.make(), Authority.make()

    def write(chain: bytes | None = None, key: bytes | None = None) -> None:
        for name, content in (("chain.pem", chain), ("key.pem", key)):
            if content is not None:
                made = tmp_path / f"{name}.new"
                made.write_bytes(content)
                made.rename(tmp_path / name)

    async def served_with(authority: Authority) -> bool:
        options = [("grpc.use_local_subchannel_pool", 1)]  # A connection of its own.
        credentials = grpc.ssl_channel_credentials(authority.pem)
        async with grpc.aio.secure_channel(broker.endpoint, credentials, options=options) as channel:
            try:
                await admin_pb2_grpc.AdminServiceStub(channel).ListTopics(
                    admin_pb2.ListTopicsRequest(), timeout=PATIENCE
                )
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                return False
        return True

    key, chain = old.issue("broker")
    write(chain, key)
    broker = new_broker("sqlite", tls_certificate=tmp_path / "chain.pem", tls_key=tmp_path / "key.pem")
    assert (await served_with(old), await served_with(new)) == (True, False)
    for broken in (b"no certificate", b"", new.issue("another")[1]):
        write(broken)
        assert (await served_with(old), await served_with(new)) == (True, False)
    broker.await_log("cannot be used", "go on with those before")
    key, chain = new.issue("broker")
    write(key=key)
    assert (await served_with(old), await served_with(new)) == (True, False)
    write(chain)
    assert (await served_with(old), await served_with(new)) == (False, True)
    broker.await_log("new connections use the certificate")
    (tmp_path / "key.pem").unlink()
    assert await served_with(new)


async def test_one_port_serves_clients_with_tls_and_without(
    new_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    authority, other = Authority.make(), Authority.make()
    key, chain = authority.issue("broker")
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "chain.pem").write_bytes(chain)
    broker = new_broker(
        "sqlite",
        tls_certificate=tmp_path / "chain.pem",
        tls_key=tmp_path / "key.pem",
        tls_optional=True,
        auto_create=True,
    )
    trusting = grpc.ssl_channel_credentials(authority.pem)
    assert await _topics(broker.endpoint, None) == 0
    assert await _topics(broker.endpoint, trusting) == 0
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _topics(broker.endpoint, grpc.ssl_channel_credentials(other.pem))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    # Bodies that take many reads, in both directions at once, and streams that a drain ends.
    body = bytes(range(256)) * 8192
    tls = TlsConfig(root_certificates=authority.pem)
    with (
        Producer(broker.endpoint) as plainly,
        Producer(broker.endpoint, tls=tls) as secretly,
        QueueReader(broker.endpoint, tls=tls) as reader,
    ):
        for number in range(8):
            producer = (plainly, secretly)[number % 2]
            producer.send("large", body, properties={"number": str(number)})
        queues = reader.queue_offsets("large")
        read = [message for queue in queues for message in reader.read_queue("large", queue.queue, 0, 100).messages]
    assert sorted(message.properties["number"] for message in read) == sorted(map(str, range(8)))
    assert {message.body for message in read} == {body}
    with Admin(broker.endpoint) as admin:
        admin.create_group("readers")
    async with AsyncConsumer(broker.endpoint, "readers", "large", tls=tls) as consumer:
        async for message in consumer:
            assert message.body == body
            await message.ack()
            break
        # In a thread: the consumer hears of the drain meanwhile.
        assert await asyncio.to_thread(broker.stop) == 0
    broker.await_log("stopped")


async def test_who_says_nothing_does_not_stay(new_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    key, chain = Authority.make().issue("broker")
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "chain.pem").write_bytes(chain)
    broker = new_broker(
        "sqlite", tls_certificate=tmp_path / "chain.pem", tls_key=tmp_path / "key.pem", tls_optional=True
    )
    host, _, port = broker.endpoint.rpartition(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(50)]
    for reader, writer in silent:
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()
    # Nonsense goes to where no TLS is spoken, which refuses it.
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 64):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(nonsense)
        await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
    assert await _topics(broker.endpoint, None) == 0


def test_secrets_that_everybody_can_read_are_told_of(new_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    key, chain = Authority.make().issue("broker")
    (tmp_path / "chain.pem").write_bytes(chain)
    for mode, told in ((0o644, True), (0o640, False)):
        (tmp_path / "key.pem").write_bytes(key)
        (tmp_path / "key.pem").chmod(mode)
        broker = new_broker("sqlite", tls_certificate=tmp_path / "chain.pem", tls_key=tmp_path / "key.pem")
        assert (broker.count("tls_key", "every user of this machine can read") == 1) == told


def test_the_database_is_asked_for_its_certificate(
    brokers: Brokers, new_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    url = brokers.database("mysql")
    with connect_to_database(url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT CONCAT(@@datadir, @@ssl_ca), @@ssl_ca")
        path, name = cursor.fetchone()
    if not name or not Path(path).exists():
        assert not in_ci(), f"the MySQL server of CI has no certificate at {path}"
        pytest.skip("this MySQL server has no certificate, or is on another machine")
    stranger = tmp_path / "stranger.pem"
    stranger.write_bytes(Authority.make().pem)
    with pytest.raises(pytest.fail.Exception, match=r"(?i)certificate"):
        new_broker(f"{url}?ssl_ca={stranger}")
    broker = new_broker(f"{url}?ssl_ca={path}")
    with connect_to_database(url) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT s.variable_value <> '' FROM performance_schema.status_by_thread s"
            " JOIN performance_schema.threads t ON t.thread_id = s.thread_id"
            " WHERE s.variable_name = 'Ssl_cipher' AND t.processlist_db = DATABASE()"
            " AND t.processlist_id <> CONNECTION_ID()"
        )
        assert cursor.fetchall() == ((1,),)
    assert broker.stop() == 0
