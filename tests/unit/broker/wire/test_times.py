"""Times at the door: what no Timestamp and no Duration can be is refused by its field, and never breaks an answer."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from broker.api.converters.filters import place_in, start_out
from broker.api.converters.groups import group, settings_in
from broker.api.converters.messages import message_in
from broker.api.converters.topics import change, new_topic
from broker.domain.group import ConsumerGroup, GroupSettings
from broker.errors import InvalidArgument
from broker.wire.times import (
    LAST,
    LONGEST,
    fill_duration,
    fill_signed,
    fill_timestamp,
    micros,
    micros_of_time,
    timestamp,
)
from halfmq.v1 import admin_pb2, message_pb2

FAR = 1 << 62
BAD_TIMES = [
    Timestamp(seconds=-1),
    Timestamp(seconds=253402300800),
    Timestamp(seconds=(1 << 63) - 1),
    Timestamp(seconds=-(1 << 63)),
    Timestamp(seconds=1, nanos=-1),
    Timestamp(seconds=1, nanos=1_000_000_000),
]
BAD_DURATIONS = [
    Duration(seconds=-1),
    Duration(seconds=315_576_000_001),
    Duration(seconds=(1 << 63) - 1),
    Duration(nanos=-1),
    Duration(seconds=1, nanos=1_000_000_000),
    Duration(seconds=1, nanos=(1 << 31) - 1),
]


@pytest.mark.parametrize("time", BAD_TIMES, ids=str)
def test_a_time_that_cannot_be_is_refused_by_its_field(time: Timestamp) -> None:
    start = message_pb2.Position(time=time)
    for field, convert in {
        "any": lambda: micros_of_time(time, "any"),
        "to.time": lambda: place_in(start, "to"),
        "group.start.time": lambda: settings_in(admin_pb2.ConsumerGroup(start=start)),
        "deliver_at": lambda: message_in(message_pb2.Message(deliver_at=time)),
    }.items():
        with pytest.raises(InvalidArgument) as error:
            convert()
        assert error.value.field == field


@pytest.mark.parametrize("duration", BAD_DURATIONS, ids=str)
def test_a_duration_that_cannot_be_is_refused_by_its_field(duration: Duration) -> None:
    for field, convert in {
        "any": lambda: micros(duration, "any"),
        "topic.retention": lambda: new_topic(admin_pb2.Topic(retention=duration)),
        "topic.dedup_window": lambda: new_topic(admin_pb2.Topic(dedup_window=duration)),
        "dedup_window": lambda: change(admin_pb2.UpdateTopicRequest(dedup_window=duration)),
        "group.retry_delays[0]": lambda: settings_in(admin_pb2.ConsumerGroup(retry_delays=[duration])),
        "delay": lambda: message_in(message_pb2.Message(delay=duration)),
    }.items():
        with pytest.raises(InvalidArgument) as error:
            convert()
        assert error.value.field == field


@pytest.mark.parametrize("seconds", [0, 1, 253402300799])
def test_the_ends_of_time_are_taken(seconds: int) -> None:
    found = micros_of_time(Timestamp(seconds=seconds, nanos=999_999_999), "any")
    assert timestamp(found).seconds in {seconds, seconds + 1}
    assert timestamp(found).ToDatetime().year <= 9999


@pytest.mark.parametrize("stored", [-FAR, -1, LAST + 1, FAR, (1 << 63) - 1])
def test_what_is_stored_never_breaks_an_answer(stored: int) -> None:
    filled, lasting = Timestamp(), Duration()
    fill_timestamp(filled, stored)
    fill_duration(lasting, stored)
    for time in (filled, timestamp(stored), *([start_out(stored).time] if stored not in {0, -1} else [])):
        assert 0 <= time.ToMicroseconds() <= LAST
    assert 0 <= lasting.ToMicroseconds() <= LONGEST
    bad = ConsumerGroup(1, "readers", stored, GroupSettings(start_at=stored, retry_delays=(stored,)), paused_at=stored)
    assert group(bad).name == "readers"


@pytest.mark.parametrize("span", [0, 1, 2_500_000, -1, -2_500_000, LONGEST, -LONGEST])
def test_a_signed_duration_keeps_its_sign(span: int) -> None:
    filled = Duration()
    fill_signed(filled, span)
    assert filled.ToMicroseconds() == span
