"""Every credential is replaced while clients work, by the steps of docs/security.md.

No call fails, neither of clients that keep their connections nor of those that connect again and again; and what was
replaced is refused afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from acceptance.client import PATIENCE, message, unique
from broker.rocketmq.protocol import Code
from broker.wire.credentials.tokens import hash_of, new_token
from consumer_sdk import AsyncConsumer
from halfmq.v1 import producer_pb2, producer_pb2_grpc
from producer_sdk import (
    Admin,
    AsyncTransactionListener,
    AsyncTransactionProducer,
    BearerToken,
    Connection,
    LocalTransactionState,
    Message,
    TlsConfig,
    TokenFile,
)
from support.certificates import Authority
from support.command import halfmq
from support.rocketmq_protocol import RawClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from producer_sdk import HalfMessages
    from support.brokers import BrokerProcess

ROTATIONS = int(os.environ.get("HALFMQ_ROTATIONS", "20"))
AUDIENCE, KEY = "halfmq", "shop"
PAUSE = 0.02
"""Seconds between two calls of a client."""
_ALONE = [("grpc.use_local_subchannel_pool", 1)]
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@dataclass
class Shown:
    """What clients show and trust; they look before each call.

    Attributes:
        roots: authorities of the broker's certificate that they trust.
        identity: key and certificate of the client.
        token, web_token, secret: a bearer token, a JWT, and the secret of the access key.
    """

    roots: bytes
    identity: tuple[bytes, bytes]
    token: str
    web_token: str
    secret: str


@dataclass
class Issuer:
    """Whoever issues JWTs."""

    name: str
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls, number: int) -> Issuer:
        return cls(f"key-{number}", ec.generate_private_key(ec.SECP256R1()))

    @property
    def public(self) -> dict[str, Any]:
        return {
            **jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True),
            "kid": self.name,
            "alg": "ES256",
        }

    def issue(self) -> str:
        claims = {"sub": "jwt", "aud": AUDIENCE, "exp": time.time() + 3600}
        return jwt.encode(claims, self.key, "ES256", headers={"kid": self.name})


class Load:
    """Clients that call all the time.

    Attributes:
        done: calls by client.
        failed: what failed.
    """

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.failed: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._turn = asyncio.Condition()

    def keep(self, name: str, call: Callable[[], Awaitable[object]]) -> None:
        """Makes a call again and again."""
        self.done[name] = 0
        self._tasks.append(asyncio.create_task(self._keep(name, call)))

    async def _keep(self, name: str, call: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await call()
            except Exception as error:
                self.failed.append(f"{name}: {error!r}")
            async with self._turn:
                self.done[name] += 1
                self._turn.notify_all()
            await asyncio.sleep(PAUSE)

    async def all_look_again(self) -> None:
        """Waits until no call is under way that began before now."""
        before = dict(self.done)
        async with asyncio.timeout(PATIENCE), self._turn:
            await self._turn.wait_for(lambda: all(self.done[name] > count for name, count in before.items()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Listener(AsyncTransactionListener):
    """Leaves everything to checks."""

    def __init__(self) -> None:
        self.checks = 0

    async def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    async def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        self.checks += 1
        return LocalTransactionState.COMMIT


class Site:
    """A broker's files, and what its clients have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, self.client_authority = Authority.make(unique("broker")), Authority.make(unique("client"))
        self.issuer = Issuer.make(0)
        self.endpoint = ""
        self.shown = Shown(
            self.authority.pem, self.client_authority.issue("certificate"), new_token(), self.issuer.issue(), "secret-0"
        )
        for name, content in zip(("key.pem", "chain.pem"), self.authority.issue("broker"), strict=True):
            self.put(name, content)
        self.put("client-ca.pem", self.client_authority.pem)
        self.put_tokens(self.shown.token)
        self.put("token", self.shown.token.encode())
        self.put_keys(self.issuer)
        self.put_secrets(self.shown.secret)

    def put(self, name: str, content: bytes) -> None:
        """Replaces a file as a whole."""
        new = self.folder / f"{name}.new"
        new.write_bytes(content)
        new.replace(self.folder / name)

    def put_tokens(self, *tokens: str) -> None:
        self.put("tokens.toml", f"[token]\nsha256 = {json.dumps([hash_of(each) for each in tokens])}\n".encode())

    def put_keys(self, *issuers: Issuer) -> None:
        self.put("jwks.json", json.dumps({"keys": [each.public for each in issuers]}).encode())

    def put_secrets(self, *secrets: str) -> None:
        self.put("keys", "".join(f"{KEY}:{each}\n" for each in secrets).encode())

    @property
    def settings(self) -> dict[str, object]:
        return {
            "access": True,
            "access_certificates": True,
            "access_tokens": self.folder / "tokens.toml",
            "jwt_keys": self.folder / "jwks.json",
            "jwt_audience": AUDIENCE,
            "tls_certificate": self.folder / "chain.pem",
            "tls_key": self.folder / "key.pem",
            "tls_client_ca": self.folder / "client-ca.pem",
            "rocketmq": True,
            "rocketmq_keys": self.folder / "keys",
        }

    def channel(self, roots: bytes = b"", identity: tuple[bytes, bytes] | None = None) -> grpc.aio.Channel:
        """A connection of its own."""
        credentials = grpc.ssl_channel_credentials(roots or self.shown.roots, *(identity or self.shown.identity))
        return grpc.aio.secure_channel(self.endpoint, credentials, options=_ALONE)

    def raw(self) -> RawClient:
        """A client of RocketMQ's."""
        return RawClient(
            self.endpoint, keys=(KEY, self.shown.secret), authority=self.shown.roots, identity=self.shown.identity
        )

    def connection(self) -> Connection:
        """For halfmq's own clients."""
        key, chain = self.shown.identity
        return Connection(
            self.endpoint,
            tls=TlsConfig(self.shown.roots, client_certificate=chain, client_key=key),
            auth=BearerToken(TokenFile(self.folder / "token")),
        )


async def send(channel: grpc.aio.Channel, token: str = "") -> None:
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    request = producer_pb2.SendRequest(messages=[message("ticks")])
    answer = await producer_pb2_grpc.ProducerServiceStub(channel).Send(request, metadata=metadata, timeout=PATIENCE)
    assert not answer.results[0].HasField("error"), answer


def _refusal(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


async def beat(raw: RawClient) -> None:
    assert await raw.heartbeat() == Code.OK


class Rotations:
    """The three steps, for each kind of credential: add the new one, switch the clients, remove the old one.

    Attributes:
        longest: seconds from the removal of an old one until it was refused, at most.
    """

    def __init__(self, site: Site, load: Load, probe: grpc.aio.Channel) -> None:
        self._site, self._load, self._probe = site, load, probe
        self.longest = 0.0

    async def _refused(self, call: Callable[[], Awaitable[None]], code: grpc.StatusCode) -> None:
        """Waits until a call is refused."""
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await call()
                except grpc.aio.AioRpcError as error:
                    assert error.code() is code, error
                    self.longest = max(self.longest, time.monotonic() - began)
                    return
                await asyncio.sleep(PAUSE)

    async def certificate(self) -> None:
        """The broker's, by another authority."""
        site, old = self._site, self._site.authority
        site.authority = Authority.make(unique("broker"))
        site.shown.roots = old.pem + site.authority.pem
        await self._load.all_look_again()
        key, chain = site.authority.issue("broker")
        # Until both are there, connections are made with those before.
        site.put("chain.pem", chain)
        await self._load.all_look_again()
        site.put("key.pem", key)
        site.shown.roots = site.authority.pem
        await self._load.all_look_again()

        async def by_the_old_authority() -> None:
            async with site.channel(roots=old.pem) as channel:
                await send(channel)

        await self._refused(by_the_old_authority, grpc.StatusCode.UNAVAILABLE)

    async def client_authority(self) -> None:
        site, old, identity = self._site, self._site.client_authority, self._site.shown.identity
        site.client_authority = Authority.make(unique("client"))
        site.put("client-ca.pem", old.pem + site.client_authority.pem)
        site.shown.identity = site.client_authority.issue("certificate")
        await self._load.all_look_again()
        site.put("client-ca.pem", site.client_authority.pem)

        async def with_the_old_certificate() -> None:
            async with site.channel(identity=identity) as channel:
                await send(channel)

        await self._refused(with_the_old_certificate, grpc.StatusCode.UNAVAILABLE)

    async def token(self) -> None:
        site, old, new = self._site, self._site.shown.token, new_token()
        site.put_tokens(old, new)
        site.shown.token = new
        site.put("token", new.encode())
        await self._load.all_look_again()
        site.put_tokens(new)
        await self._refused(lambda: send(self._probe, old), UNAUTHENTICATED)

    async def issuer(self) -> None:
        site, old, web_token = self._site, self._site.issuer, self._site.shown.web_token
        site.issuer = Issuer.make(int(old.name.rpartition("-")[2]) + 1)
        site.put_keys(old, site.issuer)
        site.shown.web_token = site.issuer.issue()
        await self._load.all_look_again()
        site.put_keys(site.issuer)
        await self._refused(lambda: send(self._probe, web_token), UNAUTHENTICATED)

    async def secret(self) -> None:
        site, old = self._site, self._site.shown.secret
        new = f"secret-{int(old.rpartition('-')[2]) + 1}"
        site.put_secrets(old, new)
        site.shown.secret = new
        await self._load.all_look_again()
        site.put_secrets(new)
        async with site.raw() as raw:
            raw.keys = (KEY, old)

            async def with_the_old_secret() -> None:
                if (code := await raw.heartbeat()) != Code.OK:
                    assert code == Code.UNAUTHORIZED
                    raise _refusal(UNAUTHENTICATED)

            await self._refused(with_the_old_secret, UNAUTHENTICATED)


def connect_again_and_again(site: Site, load: Load) -> None:
    turns = Counter[str]()

    async def native() -> None:
        turns["native"] += 1
        token = ("", site.shown.token, site.shown.web_token)[turns["native"] % 3]
        async with site.channel() as channel:
            await send(channel, token)

    async def rocketmq() -> None:
        async with site.raw() as raw:
            await beat(raw)

    load.keep("new connections", native)
    load.keep("new connections of RocketMQ's", rocketmq)


def keep_connections(site: Site, load: Load, native: grpc.aio.Channel, raw: RawClient) -> None:
    async def by_signature() -> None:
        raw.keys = (KEY, site.shown.secret)
        await beat(raw)

    load.keep("by token", lambda: send(native, site.shown.token))
    load.keep("by JWT", lambda: send(native, site.shown.web_token))
    load.keep("by certificate", lambda: send(native))
    load.keep("by signature", by_signature)


class Sdk:
    """Clients of the SDK, whose streams last longer than any token; what they sent comes, all of it by checks."""

    def __init__(self, site: Site) -> None:
        connection = site.connection()
        self.listener = Listener()
        self._producer = AsyncTransactionProducer(connection, "shop", self.listener)
        self._consumer = AsyncConsumer(connection, "readers", "orders")
        self.sent: set[bytes] = set()
        self.received: set[bytes] = set()

    async def send(self) -> None:
        body = f"{len(self.sent)}".encode()
        self.sent.add(body)
        await self._producer.send_in_transaction(Message("orders", body))

    async def read(self) -> None:
        async for each in self._consumer:
            self.received.add(each.body)
            await each.ack()

    async def everything_has_come(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.received != self.sent:  # noqa: ASYNC110 - the reader's task tells nobody
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        await self._producer.close()
        await self._consumer.close()


@pytest.fixture
def site(new_broker: Callable[..., BrokerProcess], tmp_path: Path, sqlite_url: str) -> Site:
    made = Site(tmp_path)
    halfmq("migrate", f"--database={sqlite_url}")
    halfmq("access", "grant", "user:*", "all", "*", "*", f"--database={sqlite_url}")
    made.endpoint = new_broker(sqlite_url, first_check=0.3, check_interval=0.3, **made.settings).endpoint
    with Admin(made.connection()) as admin:
        admin.create_topic("ticks")
        admin.create_topic("orders")
        admin.create_group("readers")
    return made


async def test_every_credential_is_replaced_without_a_failed_call(site: Site) -> None:
    load, raw, sdk = Load(), site.raw(), Sdk(site)
    async with site.channel() as native, site.channel() as probe, raw:
        await send(probe)
        reading = asyncio.create_task(sdk.read())
        keep_connections(site, load, native, raw)
        connect_again_and_again(site, load)
        load.keep("the SDK", sdk.send)
        await load.all_look_again()
        rotations = Rotations(site, load, probe)
        for _ in range(ROTATIONS):
            async with asyncio.TaskGroup() as group:
                for rotate in (
                    rotations.certificate,
                    rotations.client_authority,
                    rotations.token,
                    rotations.issuer,
                    rotations.secret,
                ):
                    group.create_task(rotate())
        await load.stop()
        assert load.failed == []
        await sdk.everything_has_come()
        await sdk.close()
        await reading
    print(f"{sum(load.done.values())} calls, refused after {rotations.longest:.2f} s at most")
    assert sdk.listener.checks >= len(sdk.sent)
