"""Access: nobody gets in who is not known, nobody does what no rule allows, and refusals tell nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message_factory import GetMessageClass

from acceptance.client import COMMIT, COMMITTED, PREPARED, Client, Refusal, half, message, new_id, unique
from acceptance.guarded import (
    DENIED,
    JUDGED,
    METHODS,
    NOT_FOUND,
    SIGNER,
    halfmq,
    is_known,
    is_let_in,
    methods_of,
    refusal,
    sample,
)
from broker.domain.access import Principal
from broker.wire.credentials.tokens import hash_of, new_token, read_tokens, with_token
from halfmq.v1 import (
    access_pb2,
    admin_pb2,
    consumer_pb2,
    message_pb2,
    producer_pb2,
    query_pb2,
    transaction_pb2,
)
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from acceptance.guarded import World
    from support.brokers import BrokerProcess


def jwt_of(key: Any = None, **claims: Any) -> str:
    content = {"sub": "root", "aud": "halfmq", "iss": "https://id.example", "exp": time.time() + 60, **claims}
    return jwt.encode(content, key or SIGNER, "ES256", headers={"kid": "one"})


async def withdrawn_token(world: World) -> str:
    """A token that was good, until its hash was removed from the file."""
    before, token = world.file.read_bytes(), new_token()
    world.file.write_bytes(with_token(before, "root", hash_of(token), roles=(), tenant="", replace=False))
    client = Client(world.endpoint, token)
    assert await is_let_in(client)
    world.file.write_bytes(before)
    async with asyncio.timeout(30):
        while await is_let_in(client):  # noqa: ASYNC110 - within a second
            await asyncio.sleep(0.1)
    await client.close()
    return token


async def wrong_jwts(world: World) -> list[str]:
    """Expired, too early, for another audience, of another issuer, signed by another key; a good one is let in."""
    now = time.time()
    good = (("authorization", f"Bearer {jwt_of()}"),)
    await world.grant("user:jwt:root", "all", "topic", "*")
    async with grpc.aio.insecure_channel(world.endpoint) as channel:
        listing = methods_of(channel, "/halfmq.v1.AdminService/ListTopics")
        assert await listing(admin_pb2.ListTopicsRequest(), good)
    return [
        jwt_of(exp=now - 5),
        jwt_of(nbf=now + 30),
        jwt_of(aud="another cluster"),
        jwt_of(iss="https://other.example"),
        jwt_of(ec.generate_private_key(ec.SECP256R1())),
    ]


async def test_whoever_is_not_known_gets_one_answer_to_every_call(world: World) -> None:
    shown: list[Any] = [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", world.tokens["root"]),),
        (("authorization", f"bearer {world.tokens['root']}x"),),
        (("authorization", f"Bearer {world.tokens['root']}"), ("authorization", f"Bearer {world.tokens['bob']}")),
        (("x-mq-client-id", "root"),),
        *((("authorization", f"Bearer {wrong}"),) for wrong in await wrong_jwts(world)),
        # What was good once, and is played again.
        (("authorization", f"Bearer {await withdrawn_token(world)}"),),
    ]
    answers = set()
    async with grpc.aio.insecure_channel(world.endpoint) as channel:
        for path, method in METHODS.items():
            request = GetMessageClass(method.input_type)()
            for metadata in shown:
                answers.add(await refusal(methods_of(channel, path)(request, metadata)))
    assert {code for code, _ in answers} == {grpc.StatusCode.UNAUTHENTICATED}
    assert len(answers) == 1


async def test_a_call_without_a_right_is_denied_whether_what_it_names_exists_or_not(world: World) -> None:
    """Bob has rights, but not these."""
    topic, group = await world.root.make_topic(), await world.root.make_group()
    await world.grant("user:bob", "all", "*", "bobs-*")
    answers = set()
    for path in METHODS.keys() - JUDGED:
        call = methods_of(world.bob.channel, path)
        for names in ((topic, group), (unique("no-topic"), unique("no-group"))):
            answers.add((path, *await refusal(call(sample(path, *names)))))
    assert {answer[1:] for answer in answers} == {(grpc.StatusCode.PERMISSION_DENIED, "No rule allows this to you.")}


async def test_items_are_judged_one_by_one(world: World) -> None:
    mine, other = await world.root.make_topic("mine"), await world.root.make_topic("other")
    await world.grant("user:alice", "produce", "topic", mine)
    await world.grant("user:alice", "produce", "group", "alices")
    sent = (
        await world.alice.producer.Send(
            producer_pb2.SendRequest(messages=[message(mine), message(other), message(unique("none")), message(mine)])
        )
    ).results
    assert [result.error.code for result in sent] == [0, DENIED, DENIED, 0]
    assert sent[1].error == sent[2].error
    prepared = (
        await world.alice.transactions.Prepare(
            transaction_pb2.PrepareRequest(
                producer_group="alices",
                transactions=[half([message(mine)]), half([message(mine), message(other)]), half([message(other)])],
            )
        )
    ).results
    assert [result.error.code for result in prepared] == [0, DENIED, DENIED]
    assert await world.root.bodies(other) == []
    committed = await world.alice.commit([prepared[0].transaction_id])
    assert committed[0].state == COMMITTED
    assert len(await world.root.bodies(mine)) == 3


async def test_transactions_are_of_those_who_may_produce_for_their_group(world: World) -> None:
    topic = await world.root.make_topic()
    for name in ("alice", "bob"):
        await world.grant(f"user:{name}", "produce", "topic", topic)
        await world.grant(f"user:{name}", "produce,check", "group", f"{name}s")
    (one,) = await world.alice.prepare("alices", topic, ["order"])
    unknown = new_id()
    for verdict in (world.bob.commit, world.bob.roll_back):
        refused, missing = await verdict([one, unknown])
        assert refused.error == missing.error
        assert (refused.error.code, refused.state) == (NOT_FOUND, missing.state)
    with pytest.raises(Refusal) as hidden:
        await world.bob.transaction(one)
    with pytest.raises(Refusal) as absent:
        await world.bob.transaction(unknown)
    assert (hidden.value.code, hidden.value.text) == (absent.value.code, absent.value.text)
    # Nor is bob asked about it, or heard.
    with pytest.raises(Refusal) as denied:
        await world.bob.answering("alices")
    assert denied.value.code is grpc.StatusCode.PERMISSION_DENIED
    bobs = await world.bob.answering("bobs")
    alices = await world.alice.answering("alices")
    check = await alices.next()
    answer = await bobs.answer(check, COMMIT)
    assert answer is not None
    assert answer.error.code == NOT_FOUND
    assert (await world.root.transaction(one)).state == PREPARED
    (done,) = await world.alice.commit([one])
    assert done.state == COMMITTED


async def test_receipts_are_of_those_who_may_consume_for_their_group(world: World) -> None:
    topic, group = await world.root.make_topic(), await world.root.make_group()
    await world.grant("user:alice", "consume", "topic", topic)
    await world.grant("user:alice", "consume", "group", group)
    await world.grant("user:bob", "all", "*", "bobs-*")
    await world.root.producer.Send(producer_pb2.SendRequest(messages=[message(topic, f"{n}") for n in range(3)]))
    handles = [each.receipt_handle for each in await world.alice.pull(group, topic)]
    assert len(handles) == 3
    gone = "ffffff.1.0"
    requests: list[tuple[str, Any]] = [
        ("Ack", consumer_pb2.AckRequest(receipt_handles=[handles[0], gone])),
        ("Nack", consumer_pb2.NackRequest(receipt_handles=[handles[0], gone])),
        ("ExtendLease", consumer_pb2.ExtendLeaseRequest(receipt_handles=[handles[0], gone])),
    ]
    for name, request in requests:
        refused, missing = (await getattr(world.bob.consumer, name)(request)).results
        assert refused.error == missing.error
        assert refused.error.reason
    done = (await world.alice.consumer.Ack(consumer_pb2.AckRequest(receipt_handles=handles))).results
    assert not any(result.HasField("error") for result in done)


async def test_lists_show_what_may_be_seen(world: World) -> None:
    seen, hidden = await world.root.make_topic("bobs-topic"), await world.root.make_topic("secret-topic")
    await world.grant("user:bob", "operate", "topic", "bobs-*")
    listed = [each.name for each in (await world.bob.admin.ListTopics(admin_pb2.ListTopicsRequest())).topics]
    assert listed == [seen]
    assert {seen, hidden} <= {
        each.name for each in (await world.root.admin.ListTopics(admin_pb2.ListTopicsRequest())).topics
    }
    assert not (await world.bob.admin.ListGroups(admin_pb2.ListGroupsRequest())).groups
    (one,) = await world.root.prepare("roots", hidden, ["order"])
    assert not (await world.bob.admin.ListTransactions(admin_pb2.ListTransactionsRequest())).transactions
    mine = (await world.root.admin.ListTransactions(admin_pb2.ListTransactionsRequest())).transactions
    assert one in {each.transaction_id for each in mine}


async def test_messages_are_found_by_those_who_may_see_their_topic(world: World) -> None:
    topic = await world.root.make_topic("secret")
    await world.grant("user:bob", "operate,produce", "topic", "bobs-*")
    later = message_pb2.Message(topic=topic, body=b"x")
    later.deliver_at.GetCurrentTime()
    later.deliver_at.seconds += 3600
    sent = (await world.root.producer.Send(producer_pb2.SendRequest(messages=[message(topic), later]))).results
    ids = [result.position.message_id for result in sent]
    unknown = new_id()
    for name, request in (("GetMessage", query_pb2.GetMessageRequest), ("GetTimeline", query_pb2.GetTimelineRequest)):
        texts = set()
        for own in (*ids, unknown):
            code, text = await refusal(getattr(world.bob.query, name)(request(message_id=own)))
            assert code is grpc.StatusCode.NOT_FOUND
            texts.add((text or "").replace(own, "ID"))
        assert len(texts) == 1
        assert await getattr(world.root.query, name)(request(message_id=ids[0]))
    recalled = (await world.bob.producer.Recall(producer_pb2.RecallRequest(message_ids=[*ids, unknown]))).results
    assert {result.error.code for result in recalled} == {NOT_FOUND}
    assert len({result.error.message.replace(result.message_id, "ID") for result in recalled}) == 1
    (done,) = (await world.root.producer.Recall(producer_pb2.RecallRequest(message_ids=[ids[1]]))).results
    assert done.HasField("recalled_at")


async def test_operators_have_the_name_that_they_are_known_by(world: World) -> None:
    topic = await world.root.make_topic()
    await world.grant("user:alice", "operate", "group", "shop")
    (one,) = await world.root.prepare("shop", topic, ["order"])
    resolving = admin_pb2.ResolveTransactionRequest(
        transaction_id=one, resolution=admin_pb2.RESOLUTION_COMMIT, operator="somebody else", reason="seen"
    )
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await world.bob.admin.ResolveTransaction(resolving)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    await world.alice.admin.ResolveTransaction(resolving)
    found = await world.root.transaction(one)
    assert [action.operator for action in found.operator_actions] == ["alice"]


async def test_rules_change_while_it_serves(world: World) -> None:
    topic = await world.root.make_topic()
    request = producer_pb2.SendRequest(messages=[message(topic)])

    async def codes() -> list[int]:
        return [result.error.code for result in (await world.alice.producer.Send(request)).results]

    assert await codes() == [DENIED]
    await world.grant("user:alice", "produce", "topic", "*")
    assert await codes() == [0]
    number = await world.grant("user:alice", "produce", "topic", topic, deny=True)
    assert await codes() == [DENIED]
    gone = await world.root.admin.RevokeAccess(access_pb2.RevokeAccessRequest(rule_ids=[number, 1_000_000]))
    assert [(rule.rule_id, rule.subject, rule.deny, rule.made_by) for rule in gone.rules] == [
        (number, "user:alice", True, "root")
    ]
    assert await codes() == [0]
    # In the database, too.
    await asyncio.to_thread(
        halfmq, "access", "grant", "user:alice", "produce", "topic", topic, "--deny", f"--database={world.url}"
    )
    await asyncio.sleep(1.0)
    assert await codes() == [DENIED]
    listed = await asyncio.to_thread(halfmq, "access", "rules", f"--database={world.url}")
    (last,) = [line.split()[0] for line in listed.splitlines() if "deny" in line]
    await asyncio.to_thread(halfmq, "access", "revoke", last, f"--database={world.url}")
    await asyncio.sleep(1.0)
    assert await codes() == [0]


async def test_streams_end_when_what_they_were_let_in_for_is_forbidden(world: World) -> None:
    topic, group = await world.root.make_topic(), await world.root.make_group()
    await world.grant("user:alice", "consume", "topic", topic)
    await world.grant("user:alice", "consume", "group", group)
    await world.grant("user:alice", "check,produce", "group", "shop")
    await world.grant("user:alice", "produce", "topic", topic)
    checks = await world.alice.answering("shop")
    call = world.alice.consumer.Consume()
    subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[topic])
    await call.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
    await call.write(consumer_pb2.ConsumeRequest(credits=consumer_pb2.GrantCredits(messages=100)))
    assert (await call.read()).HasField("subscribed")
    await world.root.send(topic, "first")
    delivered = await call.read()
    assert [each.message.body for each in delivered.deliveries.deliveries] == [b"first"]
    await world.grant("user:alice", "consume", "group", group, deny=True)
    await world.grant("user:alice", "check", "group", "shop", deny=True)
    await world.root.send(topic, "second")
    assert (await refusal(call.read()))[0] is grpc.StatusCode.PERMISSION_DENIED
    await world.root.prepare("shop", topic, ["order"])
    assert await checks.ended() is grpc.StatusCode.PERMISSION_DENIED
    assert not checks.seen
    # What was not delivered is there for others at once.
    assert {each.message.body for each in await world.root.pull(group, topic, wait=5)} == {b"second"}


async def test_a_withdrawn_token_decides_nothing_on_a_stream_that_is_open(world: World) -> None:
    topic = await world.root.make_topic()
    await world.grant("user:alice", "produce", "topic", topic)
    await world.grant("user:alice", "check", "group", "shop")
    checks = await world.alice.answering("shop")
    (one,) = await world.alice.prepare("shop", topic, ["order"])
    check = await checks.next()
    whole = world.file.read_bytes()
    world.file.write_bytes(b"\n\n".join(part for part in whole.split(b"\n\n") if b"alice" not in part))
    async with asyncio.timeout(30):
        while await is_known(world.alice):  # noqa: ASYNC110 - within a second
            await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
    with pytest.raises(Refusal) as ended:
        await checks.answer(check, COMMIT)
    assert ended.value.code is grpc.StatusCode.UNAUTHENTICATED
    assert (await world.root.transaction(one)).state == PREPARED
    world.file.write_bytes(whole)


def test_tokens_are_made_and_changed_by_the_command(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    first = halfmq("access", "token", "alice", f"--tokens={file}", "--role=shop").strip()
    second = halfmq("access", "token", "alice", f"--tokens={file}", "--tenant=acme").strip()
    alice = Principal("alice", frozenset({"shop"}), "acme")
    assert read_tokens(file.read_bytes()) == {hash_of(first): alice, hash_of(second): alice}
    third = halfmq("access", "token", "alice", f"--tokens={file}", "--replace").strip()
    assert read_tokens(file.read_bytes()) == {hash_of(third): alice}
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_rule_that_is_not_there_is_named(new_broker: Callable[..., BrokerProcess]) -> None:
    database = new_broker("sqlite").database
    halfmq("access", "grant", "user:bob", "produce", "topic", "a", f"--database={database}")
    command = [sys.executable, "-m", "halfmq_cli", "access", "revoke", "1", "77", f"--database={database}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 1
    assert "user:bob" in done.stdout
    assert "no rule has the number 77;" in done.stderr


def test_a_name_that_cannot_be_one_is_refused_as_such(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "halfmq_cli", "access", "token", "é🎩", f"--tokens={tmp_path / 'tokens.toml'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 2
    assert done.stderr.startswith("halfmq: name: A name has up to 100 letters")
    assert list(tmp_path.iterdir()) == []
