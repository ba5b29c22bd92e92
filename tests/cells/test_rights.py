"""Access to topics in several cells: where something is, is told to nobody who may not use it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import grpc
import pytest

from broker.wire.credentials.tokens import hash_of, new_token, with_token
from cells.client import CellClient
from cells.test_routing import count, reason
from faults.client import PATIENCE, message, new_id
from halfmq.v1 import access_pb2, admin_pb2, consumer_pb2, producer_pb2, transaction_pb2
from support.brokers import BrokerProcess
from support.command import halfmq
from support.databases import create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Iterator

DENIED = grpc.StatusCode.PERMISSION_DENIED.value[0]
Headers = tuple[tuple[str, str], ...]


class World(NamedTuple):
    """A broker that asks who calls: root may do everything, bob sends to `open` at home, and reads `read` in a cell."""

    client: CellClient
    root: Headers
    bob: Headers
    tenant: Headers
    home: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home, other = (create_database(server_url("mariadb")) for _ in range(2))
    tokens = {name: new_token() for name in ("root", "bob", "acme")}
    content = b""
    for name, token in tokens.items():
        content = with_token(
            content, name, hash_of(token), roles=(), tenant=name if name == "acme" else "", replace=False
        )
    file = tmp_path_factory.mktemp("rights") / "tokens.toml"
    file.write_bytes(content)
    root, bob, acme = ((("authorization", f"Bearer {tokens[name]}"),) for name in tokens)
    settings = {"access": True, "access_tokens": file, "access_without_tls": True, "auto_create_groups": True}
    with BrokerProcess(home, {"HALFMQ_CELLS": f"b={other}"}, **settings) as broker, CellClient(broker.endpoint) as own:
        halfmq("access", "grant", "user:root", "all", "*", "*", f"--database={home}")
        for name, cell in (("open", ""), ("read", "b"), ("secret", "b")):
            wanted = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=name), cell=cell)
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    own.admin.CreateTopic(wanted, metadata=root, timeout=PATIENCE)
                    break
                except grpc.RpcError as error:
                    # The broker reads rules every half second.
                    if error.code() is not grpc.StatusCode.PERMISSION_DENIED or time.monotonic() > until:
                        raise
                    time.sleep(0.1)
        for kind_of, name, rights in (
            ("topic", "open", "pub"),
            ("topic", "read", "sub"),
            ("group", "*", "sub"),
            ("group", "*", "pub"),
        ):
            rule = access_pb2.AccessRule(subject="user:bob", actions=[rights], kind=kind_of, pattern=name)
            own.admin.GrantAccess(access_pb2.GrantAccessRequest(rule=rule), metadata=root, timeout=PATIENCE)
        yield World(own, root, bob, acme, home)
    drop_database(home)
    drop_database(other)


def test_nobody_learns_where_a_topic_is_that_they_may_not_use(world: World) -> None:
    for hidden in ("secret", "nothing"):
        request = producer_pb2.SendRequest(messages=[message("open", "1"), message(hidden, "2")], in_order=True)
        results = world.client.producer.Send(request, metadata=world.bob, timeout=PATIENCE).results
        assert [each.error.code for each in results] == [0, DENIED]
        half = transaction_pb2.HalfTransaction(
            transaction_id=new_id(), messages=[message("open", "1"), message(hidden, "2")]
        )
        prepare = transaction_pb2.PrepareRequest(producer_group="shop", transactions=[half])
        (result,) = world.client.transactions.Prepare(prepare, metadata=world.bob, timeout=PATIENCE).results
        assert result.error.code == DENIED


def test_a_group_is_placed_for_those_only_who_may_create_it(world: World) -> None:
    request = consumer_pb2.PullRequest(consumer_group="readers", topics=["read"])
    pull = world.client._consumer.Pull
    with pytest.raises(grpc.RpcError) as refused:
        list(pull(request, metadata=world.bob, timeout=PATIENCE))
    assert reason(refused.value) == "GROUP_NOT_FOUND"
    assert count(world.home, "placement", "name = 'readers'") == 0
    assert list(pull(request, metadata=world.root, timeout=PATIENCE)) == []
    assert list(pull(request, metadata=world.bob, timeout=PATIENCE)) == []


def test_a_tenant_does_not_get_around_its_quotas_by_another_cell(world: World) -> None:
    rule = access_pb2.AccessRule(subject="user:acme", actions=["create"], kind="topic", pattern="acme%*")
    world.client.admin.GrantAccess(access_pb2.GrantAccessRequest(rule=rule), metadata=world.root, timeout=PATIENCE)
    for cell, expected in (("b", "INVALID_ARGUMENT"), ("*", "INVALID_ARGUMENT"), ("", "")):
        request = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name="acme%orders"), cell=cell)
        try:
            world.client.admin.CreateTopic(request, metadata=world.tenant, timeout=PATIENCE)
            found = ""
        except grpc.RpcError as error:
            found = reason(error)
        assert found == expected
    assert count(world.home, "placement", "name LIKE 'acme%'") == 0
