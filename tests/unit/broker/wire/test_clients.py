"""What a call says of its client, as operators see it."""

from __future__ import annotations

import pytest

from broker.wire.clients import LONGEST_LIBRARY, library_in, place_of


@pytest.mark.parametrize(
    ("peer", "place"),
    [
        ("ipv4:10.0.0.1:1234", "10.0.0.1:1234"),
        ("ipv6:%5B::1%5D:1234", "[::1]:1234"),
        ("unix:/run/halfmq", "unix:/run/halfmq"),
        ("", ""),
    ],
)
def test_where_it_calls_from(peer: str, place: str) -> None:
    assert place_of(peer) == place


@pytest.mark.parametrize(
    ("agent", "library"),
    [
        ("halfmq-python/0.1.0 grpc-python-asyncio/1.85.0 grpc-c/52 (linux; chttp2)", "halfmq-python/0.1.0"),
        ("grpc-java-netty/1.50.0", "grpc-java-netty/1.50.0"),
        ("evil\x1b[2J rest", "evil?[2J"),
        ("x" * 500, "x" * LONGEST_LIBRARY),
        (b"binary", ""),
    ],
)
def test_the_library_is_the_first_word_of_its_user_agent(agent: object, library: str) -> None:
    assert library_in([("x-other", "a"), ("user-agent", agent)]) == library


def test_without_a_user_agent_nothing_is_told() -> None:
    assert library_in([("x-other", "a")]) == ""
