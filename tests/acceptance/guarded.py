"""A broker with access on, and its clients."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message_factory import GetMessageClass
from jwt.algorithms import ECAlgorithm

from acceptance.client import Client, half, message, new_id
from broker.api.access import CALLS
from broker.wire.credentials.tokens import hash_of, new_token, with_token
from halfmq.v1 import access_pb2, admin_pb2, consumer_pb2, producer_pb2, query_pb2, sink_pb2, transaction_pb2
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from support.brokers import BrokerProcess
    from support.databases import AnyKind

NOT_FOUND, DENIED = grpc.StatusCode.NOT_FOUND.value[0], grpc.StatusCode.PERMISSION_DENIED.value[0]
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for module in (transaction_pb2, producer_pb2, consumer_pb2, admin_pb2, query_pb2, sink_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
NAMES = ("root", "alice", "bob")
TENANTS = ("acme", "globex")
SIGNER = ec.generate_private_key(ec.SECP256R1())


def halfmq(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "halfmq_cli", *arguments], capture_output=True, text=True, check=False, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass
class World:
    """A broker with access on, and clients: root may do everything, alice and bob what tests grant them."""

    url: str
    tokens: dict[str, str]
    clients: dict[str, Client]
    endpoint: str
    file: Path

    def __getattr__(self, name: str) -> Client:
        return self.clients[name]

    async def grant(self, subject: str, rights: str, kind: str, pattern: str, *, deny: bool = False) -> int:
        """Grants; returns the number of the rule. The broker that does it knows it at once."""
        rule = access_pb2.AccessRule(subject=subject, actions=rights.split(","), kind=kind, pattern=pattern, deny=deny)
        granted = await self.root.admin.GrantAccess(access_pb2.GrantAccessRequest(rule=rule))
        return int(granted.rule.rule_id)


async def is_let_in(client: Client) -> bool:
    try:
        await client.admin.ListQuotas(access_pb2.ListQuotasRequest())
    except grpc.aio.AioRpcError:
        return False
    return True


async def is_known(client: Client) -> bool:
    try:
        await client.admin.ListTopics(admin_pb2.ListTopicsRequest())
    except grpc.aio.AioRpcError as error:
        return error.code() is not grpc.StatusCode.UNAUTHENTICATED
    return True


@asynccontextmanager
async def guarded(kind: AnyKind, new_broker: Callable[..., BrokerProcess], tmp_path: Path) -> AsyncIterator[World]:
    """A broker with access on, which knows root already; no log of it has a token."""
    file = tmp_path / "tokens.toml"
    tokens = dict.fromkeys((*NAMES, *TENANTS), "")
    content = b""
    for name in tokens:
        tokens[name] = new_token()
        tenant = name if name in TENANTS else ""
        content = with_token(content, name, hash_of(tokens[name]), roles=(), tenant=tenant, replace=False)
    file.write_bytes(content)
    keys = tmp_path / "jwks.json"
    public = {**ECAlgorithm.to_jwk(SIGNER.public_key(), as_dict=True), "kid": "one", "alg": "ES256"}
    keys.write_text(json.dumps({"keys": [public]}))
    broker = new_broker(
        kind,
        access=True,
        access_tokens=file,
        access_without_tls=True,
        jwt_keys=keys,
        jwt_audience="halfmq",
        jwt_issuer="https://id.example",
        jwt_clock_skew=1,
        first_check=0.3,
    )
    halfmq("access", "grant", "user:root", "all", "*", "*", f"--database={broker.database}")
    clients = {name: Client(broker.endpoint, token) for name, token in tokens.items()}
    async with asyncio.timeout(30):
        while not await is_let_in(clients["root"]):  # noqa: ASYNC110 - within a second
            await asyncio.sleep(0.1)
    yield World(broker.database, tokens, clients, broker.endpoint, file)
    for client in clients.values():
        await client.close()
    for token in tokens.values():
        assert token not in broker.log


def methods_of(channel: Any, path: str) -> Any:
    """A method by its path, as a function of a request; a stream answers with its first response."""
    method = METHODS[path]
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    forms = {"request_serializer": request.SerializeToString, "response_deserializer": response.FromString}

    async def call(content: Any, metadata: Any = ()) -> Any:
        if method.client_streaming:
            stream = channel.stream_stream(path, **forms)(metadata=metadata)
            await stream.write(content)
            answer = await stream.read()
            if answer is grpc.aio.EOF:
                raise grpc.aio.AioRpcError(
                    await stream.code(), grpc.aio.Metadata(), grpc.aio.Metadata(), await stream.details()
                )
            stream.cancel()
            return answer
        if method.server_streaming:
            return [each async for each in channel.unary_stream(path, **forms)(content, metadata=metadata)]
        return await channel.unary_unary(path, **forms)(content, metadata=metadata)

    return call


async def refusal(call: Any) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details()


def sample(path: str, topic: str, group: str) -> Any:
    """A request that names existing things."""
    found = {
        "Prepare": transaction_pb2.PrepareRequest(producer_group=group, transactions=[half([message(topic)])]),
        "CheckTransactions": transaction_pb2.CheckTransactionsRequest(
            register=transaction_pb2.RegisterProducer(producer_group=group)
        ),
        "SendAndAck": producer_pb2.SendAndAckRequest(messages=[message(topic)], receipt_handles=["1.1.0"]),
        "Consume": consumer_pb2.ConsumeRequest(subscribe=consumer_pb2.Subscribe(consumer_group=group, topics=[topic])),
        "Pull": consumer_pb2.PullRequest(consumer_group=group, topics=[topic]),
        "ReadQueue": consumer_pb2.ReadQueueRequest(topic=topic),
        "MeasureQueue": consumer_pb2.MeasureQueueRequest(topic=topic),
        "QueueOffsets": consumer_pb2.QueueOffsetsRequest(topic=topic),
        "CommitOffsets": consumer_pb2.CommitOffsetsRequest(topic=topic, consumer_group=group),
        "CreateTopic": admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=topic)),
        "CreateGroup": admin_pb2.CreateGroupRequest(group=admin_pb2.ConsumerGroup(name=group)),
        "FindMessages": query_pb2.FindMessagesRequest(topic=topic, key="k"),
        "ListTransactions": admin_pb2.ListTransactionsRequest(producer_group=group),
        "SeekGroup": admin_pb2.SeekGroupRequest(group=group, topic=topic),
        "GrantAccess": access_pb2.GrantAccessRequest(
            rule=access_pb2.AccessRule(subject="user:bob", actions=["all"], kind="*", pattern="*")
        ),
        "RevokeAccess": access_pb2.RevokeAccessRequest(rule_ids=[1]),
        "SetQuota": access_pb2.SetQuotaRequest(quota=access_pb2.Quota(tenant="acme", topics=1)),
        "PrepareEpoch": sink_pb2.PrepareEpochRequest(
            epoch=sink_pb2.Epoch(sink="s", query_id="q"),
            attempt_id=new_id(),
            transaction_id=new_id(),
            messages=[message(topic)],
        ),
        "CommitEpoch": sink_pb2.CommitEpochRequest(epoch=sink_pb2.Epoch(sink="s", query_id="q")),
        "AbortEpoch": sink_pb2.AbortEpochRequest(epoch=sink_pb2.Epoch(sink="s", query_id="q")),
    }.get(path.rpartition("/")[2])
    if found is None:
        found = GetMessageClass(METHODS[path].input_type)()
        for field, value in (("topic", topic), ("group", group), ("sink", "s")):
            if field in found.DESCRIPTOR.fields_by_name and found.DESCRIPTOR.fields_by_name[field].message_type is None:
                setattr(found, field, value)
    return found


# What is judged item by item, or after a look-up; and lists, which show less.
JUDGED = {
    path
    for path, entry in CALLS.items()
    if entry.items and path in METHODS and not list(entry.needs(GetMessageClass(METHODS[path].input_type)()))
}
