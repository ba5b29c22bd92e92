"""Transactions over TLS: from clients to the broker, and from the broker to its database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from acceptance.client import PATIENCE
from halfmq.v1 import admin_pb2, admin_pb2_grpc
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
