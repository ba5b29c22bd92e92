"""Tokens: with every kind of call, over TLS only, and read again when they change."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from client_core.connection import BearerToken, Connection, TlsConfig, TokenFile
from client_core.errors import ConfigurationError
from support.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Server:
    """Answers each call with the `authorization` that it carried."""

    def __init__(self, authority: Authority | None = None) -> None:
        self.tls = None
        self._server = grpc.aio.server()
        made = {
            "One": grpc.unary_unary_rpc_method_handler(self._one),
            "Many": grpc.unary_stream_rpc_method_handler(self._many),
            "Both": grpc.stream_stream_rpc_method_handler(self._both),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", made),))
        if authority is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
            return
        self.tls = TlsConfig(root_certificates=authority.pem)
        pair = authority.issue("server")
        self.port = self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))

    async def __aenter__(self) -> Server:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    def channel(self, auth: BearerToken | None) -> Any:
        return Connection(f"127.0.0.1:{self.port}", self.tls, auth=auth).channel(f"127.0.0.1:{self.port}", ())

    @staticmethod
    def _shown(context: Any) -> bytes:
        return b",".join(
            str(value).encode() for name, value in context.invocation_metadata() if name == "authorization"
        )

    async def _one(self, _: bytes, context: Any) -> bytes:
        return self._shown(context)

    async def _many(self, _: bytes, context: Any) -> AsyncIterator[bytes]:
        yield self._shown(context)

    async def _both(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield self._shown(context)


async def seen(channel: Any, **rest: Any) -> list[bytes]:
    """What arrives of each kind of call."""
    one = await channel.unary_unary("/test.Echo/One")(b"", **rest)
    (many,) = [each async for each in channel.unary_stream("/test.Echo/Many")(b"", **rest)]
    call = channel.stream_stream("/test.Echo/Both")(**rest)
    await call.write(b"")
    both = await call.read()
    await call.done_writing()
    return [one, many, both]


@pytest.mark.parametrize("encrypted", [True, False])
async def test_every_kind_of_call_carries_the_token(encrypted: bool) -> None:
    async with (
        Server(Authority.make() if encrypted else None) as server,
        server.channel(BearerToken("abc", without_tls=not encrypted)) as channel,
    ):
        assert await seen(channel) == [b"Bearer abc"] * 3
        assert await seen(channel, metadata=(("x", "y"),), timeout=5) == [b"Bearer abc"] * 3


async def test_without_a_token_nothing_is_sent() -> None:
    async with Server() as server, server.channel(None) as channel:
        assert await seen(channel) == [b""] * 3


async def test_a_function_is_asked_for_each_call() -> None:
    tokens = iter(["a", "b", "c"])
    auth = BearerToken(lambda: next(tokens), without_tls=True)
    async with Server() as server, server.channel(auth) as channel:
        assert await seen(channel) == [b"Bearer a", b"Bearer b", b"Bearer c"]


def test_a_token_does_not_go_over_a_plain_connection_unless_told() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Connection("127.0.0.1:1", auth=BearerToken("secret"))
    assert refused.value.field == "auth"
    assert "secret" not in str(refused.value)
    Connection("127.0.0.1:1", auth=BearerToken("secret", without_tls=True))


@pytest.mark.parametrize("token", ["", "a b", "a\n", "é", None, b"abc", 7])
def test_what_is_no_token(token: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        BearerToken(token)
    assert refused.value.field == "token"
    returning = BearerToken(lambda: token)
    with pytest.raises(ConfigurationError):
        returning.current()


def test_tokens_are_not_shown() -> None:
    connection = Connection("127.0.0.1:1", auth=BearerToken("secret-1", without_tls=True))
    assert "secret-1" not in repr(connection)
    assert "secret-1" not in str(connection.auth)


def test_a_file_is_read_again_when_it_was_replaced(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    auth = BearerToken(TokenFile(file))
    assert auth.current() == "first"
    other = tmp_path / "new"
    other.write_text("second")
    os.replace(other, file)
    assert auth.current() == "second"
    # While it is being replaced.
    file.unlink()
    assert auth.current() == "second"
    file.write_text("")
    assert auth.current() == "second"
    time.sleep(0.01)
    file.write_text("third")
    assert auth.current() == "third"


@pytest.mark.parametrize("content", [None, b"", b"a b", b"\xff"])
def test_a_file_without_a_token(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        TokenFile(file)
    assert refused.value.field == "token"
    assert "a b" not in str(refused.value)
