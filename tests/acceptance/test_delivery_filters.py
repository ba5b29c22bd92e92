"""Filters through the protocol: what a group does not want never leaves the broker, and mistakes are told exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import Client, Pair, Refusal, message, unique
from acceptance.streams import Listener, eventually, make_group, progress
from halfmq.v1 import admin_pb2, consumer_pb2, message_pb2, producer_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence


KIB = 1024
RED = message_pb2.Filter(tags="red")
DEAR = message_pb2.Filter(sql="price > 10 AND halfmq.tag IN ('red', 'green')")
# What is wrong, at which character, and what it says there.
MISTAKES = [
    (message_pb2.Filter(sql="color ="), "sql", 8, "a value is missing at the end"),
    (message_pb2.Filter(sql="price > 10 AND color red"), "sql", 22, "an operator such as"),
    (message_pb2.Filter(sql="a = 'x' -- b"), "sql", 9, "begins a comment"),
    (message_pb2.Filter(sql="halfmq.color = 1"), "sql", 1, "there is no system field 'halfmq.color'"),
    (message_pb2.Filter(sql="x" * 5000), "sql", 4097, "it has 5000 characters"),
    (message_pb2.Filter(tags=" || "), "tags", 1, "a tag is missing"),
    (message_pb2.Filter(tags="red || a|b"), "tags", 9, "none contains a '|'"),
    (message_pb2.Filter(tags=""), "tags", 1, "it is empty"),
]


def wanting(topic: str, wanted: message_pb2.Filter) -> list[consumer_pb2.TopicFilter]:
    return [consumer_pb2.TopicFilter(topic=topic, filter=wanted)]


async def send(client: Client, topic: str, tags: Sequence[str], size: int = 1, **properties: str) -> None:
    """A message for each tag; its body begins with the tag and its number."""
    bodies = [f"{tag}{number} ".ljust(size) for number, tag in enumerate(tags)]
    wanted = [message(topic, b, tag=t, properties=properties) for b, t in zip(bodies, tags, strict=True)]
    results = (await client.call(client.producer.Send, producer_pb2.SendRequest(messages=wanted))).results
    assert not any(result.HasField("error") for result in results)


def words(found: Sequence[str]) -> list[str]:
    return [body.strip() for body in found]


async def refused(method: Any, client: Client, request: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        if isinstance(method, grpc.aio.UnaryStreamMultiCallable):
            await client.stream(method, request)
        else:
            await client.call(method, request)
    return caught.value


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: str(mistake[0])[:30].strip())
async def test_a_mistake_is_told_with_its_field_and_place(pair: Pair, mistake: Any) -> None:
    wanted, kind, place, text = mistake
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    calls = [
        (
            pair[0].consumer.Pull,
            consumer_pb2.PullRequest(consumer_group=group, topics=[topic], filters=wanting(topic, wanted)),
            "filters[0].filter",
        ),
        (pair[1].consumer.ReadQueue, consumer_pb2.ReadQueueRequest(topic=topic, filter=wanted), "filter"),
        (
            pair[1].admin.SetFilter,
            admin_pb2.SetFilterRequest(group=group, filter=wanting(topic, wanted)[0]),
            "filter.filter",
        ),
        (pair[0].admin.ListDeadLetters, admin_pb2.ListDeadLettersRequest(group=group, filter=wanted), "filter"),
    ]
    for method, request, field in calls:
        refusal = await refused(method, pair[0], request)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FILTER_INVALID")
        assert refusal.text.startswith(f"{field}.{kind}: The filter is wrong at character ")
        assert text in refusal.text
        if place is not None:
            assert f"wrong at character {place}:" in refusal.text
            assert refusal.info.metadata["position"] == str(place)
    with pytest.raises(Refusal, match=r"filters\[0\]\.filter\.") as on_stream:
        async with Listener(pair[1], group, topic, filters=wanting(topic, wanted)):
            pass
    assert on_stream.value.reason == "FILTER_INVALID"
    # Nothing of it stays.
    described = await pair[0].call(pair[0].admin.DescribeGroup, admin_pb2.DescribeGroupRequest(group=group))
    assert list(described.group.filters) == []


@pytest.mark.parametrize("wanted", [RED, DEAR], ids=["tags", "sql"])
async def test_what_is_not_wanted_is_not_transferred(pair: Pair, wanted: message_pb2.Filter) -> None:
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    async with (
        Listener(pair[0], group, topic, filters=wanting(topic, wanted), acking=True) as one,
        Listener(pair[1], group, topic, filters=wanting(topic, wanted), acking=True) as other,
    ):
        for number in range(10):
            await send(pair[number % 2], topic, ["blue"] * 50, size=20 * KIB, price="11")
            await send(pair[number % 2], topic, ["red"], size=KIB, price="11")
        came = await eventually(
            lambda: progress(pair[0], group), lambda found: found[0].lag == 0 and found[0].max_offset == 510
        )
        assert came[0].committed_offset == 510
        await eventually(lambda: progress(pair[1], group), lambda found: found[0].lag == 0)
        assert words(one.bodies + other.bodies) == ["red0"] * 10
        # Ten messages and their acks; the others are ten megabytes.
        assert one.received + other.received < 20 * KIB


async def test_a_filter_is_the_groups(pair: Pair) -> None:
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    async with Listener(pair[0], group, topic, filters=wanting(topic, RED), acking=True) as one:
        with pytest.raises(
            Refusal, match=r"filters: .*reads .* with the filter 'red'; set replace_filters"
        ) as conflict:
            async with Listener(pair[1], group, topic, filters=wanting(topic, DEAR)):
                pass
        assert (conflict.value.code, conflict.value.reason) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "FILTER_CONFLICT",
        )
        request = consumer_pb2.PullRequest(consumer_group=group, topics=[topic], filters=wanting(topic, DEAR))
        with pytest.raises(Refusal) as pulling:
            await pair[1].stream(pair[1].consumer.Pull, request)
        assert pulling.value.reason == "FILTER_CONFLICT"
        # The same, and none at all, are fine.
        async with (
            Listener(pair[1], group, topic, credits=0),
            Listener(pair[1], group, topic, filters=wanting(topic, RED), credits=0),
        ):
            await send(pair[1], topic, ["blue", "red"], price="11")
            await one.until(lambda: words(one.bodies) == ["red1"])
        # On purpose, it is another one for everybody, on every broker.
        async with Listener(pair[1], group, topic, filters=wanting(topic, DEAR), replace_filters=True, credits=0):
            await send(pair[1], topic, ["green", "blue", "red"], price="11")
            await send(pair[0], topic, ["green", "blue", "red"], price="9")
            await one.until(lambda: words(one.bodies) == ["red1", "green0", "red2"])
            await eventually(lambda: progress(pair[0], group), lambda found: found[0].lag == 0)


async def test_a_group_that_wants_all_is_not_narrowed_by_a_consumer(pair: Pair) -> None:
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    async with Listener(pair[0], group, topic):
        with pytest.raises(Refusal, match="wants all of") as conflict:
            async with Listener(pair[1], group, topic, filters=wanting(topic, RED)):
                pass
    assert conflict.value.reason == "FILTER_CONFLICT"


async def test_an_operator_sets_the_filter_while_consumers_run(pair: Pair) -> None:
    topic, group = await pair[0].make_topic(), await make_group(pair[0], unique("readers"))
    async with Listener(pair[0], group, topic, acking=True) as stream:
        await send(pair[1], topic, ["blue", "red"])
        await stream.until(lambda: len(stream.arrivals) == 2)
        for wanted, expected in (
            (RED, ["red1"]),
            (None, ["blue0", "red1"]),
            (message_pb2.Filter(tags="blue"), ["blue0"]),
        ):
            request = admin_pb2.SetFilterRequest(
                group=group, filter=consumer_pb2.TopicFilter(topic=topic, filter=wanted)
            )
            changed = (await pair[1].call(pair[1].admin.SetFilter, request)).group
            assert [each.filter for each in changed.filters] == ([wanted] if wanted else [])
            stream.arrivals.clear()
            await send(pair[0], topic, ["blue", "red"])
            await stream.until(lambda: len(stream.arrivals) == len(expected))  # noqa: B023 - waited for here
            assert words(stream.bodies) == expected
            await eventually(lambda: progress(pair[1], group), lambda found: found[0].lag == 0)


async def test_reading_a_queue_with_a_filter(pair: Pair) -> None:
    topic = await pair[0].make_topic()
    for number in range(4):
        await send(pair[number % 2], topic, ["blue"] * 300, size=4 * KIB)
        await send(pair[number % 2], topic, ["red"])

    async def read(offset: int, most: int, wanted: message_pb2.Filter) -> tuple[list[int], int, int]:
        request = consumer_pb2.ReadQueueRequest(topic=topic, offset=offset, max_messages=most, filter=wanted)
        pieces = await pair[offset % 2].stream(pair[offset % 2].consumer.ReadQueue, request)
        assert (pieces[-1].min_offset, pieces[-1].max_offset) == (0, 1204)
        found = [each.offset for piece in pieces for each in piece.messages]
        return found, pieces[-1].next_offset, sum(piece.ByteSize() for piece in pieces)

    found, following, size = await read(0, 2, RED)
    assert found == [300, 601]
    assert 602 <= following <= 902
    assert size < 4 * KIB
    assert (await read(following, 2, RED))[:2] == ([902, 1203], 1204)
    assert (await read(following, 100, RED))[:2] == ([902, 1203], 1204)
    # Where nothing passes, it leads on to the end all the same.
    assert (await read(0, 10, message_pb2.Filter(sql="halfmq.tag = 'green'")))[:2] == ([], 1204)
    assert (await read(1, 1, message_pb2.Filter(sql="halfmq.\"offset\" >= 900 AND halfmq.tag = 'red'")))[0] == [902]
