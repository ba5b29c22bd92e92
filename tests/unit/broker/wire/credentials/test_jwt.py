"""JSON Web Tokens: which are accepted, and how keys change."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import random
import socket
import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from broker.domain.access import Principal
from broker.errors import ConfigurationError
from broker.wire.credentials import files
from broker.wire.credentials import jwt as jwts
from broker.wire.credentials.jwt import Jwts, JwtSettings, read_keys

if TYPE_CHECKING:
    from pathlib import Path

AUDIENCE = "halfmq"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
KINDS: dict[str, tuple[Any, Any]] = {
    "RS256": (RSA, jwt.algorithms.RSAAlgorithm),
    "ES256": (EC, jwt.algorithms.ECAlgorithm),
    "EdDSA": (ED, jwt.algorithms.OKPAlgorithm),
}


def public(algorithm: str, name: str) -> dict[str, Any]:
    key, kind = KINDS[algorithm]
    return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": name, "alg": algorithm, "use": "sig"}


def a_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def token(algorithm: str = "ES256", name: str | None = "one", key: Any = None, **claims: Any) -> str:
    content = {"sub": "alice", "aud": AUDIENCE, "exp": time.time() + 60, **claims}
    content = {claim: value for claim, value in content.items() if value is not None}
    headers = {} if name is None else {"kid": name}
    return jwt.encode(content, key or KINDS[algorithm][0], algorithm, headers=headers)


def hidden(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def put(file: Path, *keys: dict[str, Any]) -> None:
    file.write_bytes(a_set(*keys))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "PAUSE", 0.0)
    file = tmp_path / "jwks.json"
    put(file, public("ES256", "one"))
    return file


def judge(file: Path, **settings: Any) -> Jwts:
    return Jwts(JwtSettings(str(file), AUDIENCE, **settings))


@pytest.mark.parametrize("algorithm", KINDS)
async def test_signatures(file: Path, algorithm: str) -> None:
    put(file, public(algorithm, "one"))
    judging = judge(file)
    claims = {"roles": ["shop", "ops"], "tenant": "acme"}
    for _ in range(2):
        assert await judging.principal(token(algorithm, **claims)) == Principal(
            "jwt:alice", frozenset({"jwt:shop", "jwt:ops"}), "acme"
        )


async def test_claims_that_are_accepted(file: Path) -> None:
    judging = judge(file, issuer="https://id.example", skew=5.0, roles="groups", tenant="org")
    good = {"iss": "https://id.example"}
    alice = Principal("jwt:alice")
    for claims, expected in (
        ({}, alice),
        ({"groups": "a b"}, Principal("jwt:alice", frozenset({"jwt:a", "jwt:b"}))),
        ({"roles": ["not", "this"], "org": "acme"}, Principal("jwt:alice", tenant="acme")),
        ({"aud": ["other", AUDIENCE]}, alice),
        ({"exp": time.time() - 2}, alice),
        ({"nbf": time.time() + 2}, alice),
    ):
        assert await judging.principal(token(**good, **claims)) == expected


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": None},
        {"sub": ""},
        {"aud": None},
        {"aud": "other"},
        {"aud": []},
        {"exp": None},
        {"exp": 1},
        {"exp": time.time() - 60},
        {"exp": "soon"},
        {"nbf": time.time() + 24 * 3600},
        {"iss": None},
        {"iss": "https://evil.example"},
        {"iss": "id.example"},
        {"roles": [7]},
        {"roles": {"a": 1}},
        {"tenant": 7},
        {"tenant": "a%b"},
        {"exp": True},
        {"exp": 10**400},
        {"exp": 10**15},
        {"exp": float("inf")},
        {"exp": float("nan")},
        {"nbf": float("inf")},
        {"sub": "x" * 201},
        {"sub": "a\nb"},
        {"sub": "\u202ealice"},
    ],
)
async def test_claims_that_are_not(file: Path, claims: dict[str, Any]) -> None:
    judging = judge(file, issuer="https://id.example")
    assert await judging.principal(token(**{"iss": "https://id.example", **claims})) is None


async def test_signatures_that_are_not_accepted(file: Path) -> None:
    judging = judge(file)
    good = token()
    assert await judging.principal(good) == Principal("jwt:alice")
    head, body, signature = good.split(".")
    unsigned = hidden(b'{"alg":"none","typ":"JWT","kid":"one"}')
    other = ec.generate_private_key(ec.SECP256R1())
    # A public key that is taken for a shared one.
    by_shared_key = hidden(b'{"alg":"HS256","typ":"JWT","kid":"one"}') + f".{body}"
    shared = EC.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    for wrong in (
        f"{unsigned}.{body}.",
        f"{unsigned}.{body}.{signature}",
        f"{head}.{body}.",
        token(key=other),
        token(name="two"),
        token("RS256"),
        f"{by_shared_key}.{hidden(hmac.digest(shared, by_shared_key.encode(), 'sha256'))}",
        token(name="two", key=other),
        good + "x",
        good + "=",
        f"{head}.{body}.!{signature}",
        f"{head}.{body}.{signature[:40]}\n{signature[40:]}",
        f"{good}\u00e9",
        f"{hidden(b'[' * 6000)}.{body}.{signature}",
        "x." + good,
        "",
        "..",
        "a.b.c",
        f"{head}.{body}.{'A' * 10_000}",
    ):
        assert await judging.principal(wrong) is None, wrong


async def test_random_changes_of_a_good_token(file: Path) -> None:
    judging = judge(file)
    good = token()
    choice = random.Random(3)
    head, body, signature = good.split(".")
    for _ in range(2000):
        part = choice.randrange(3)
        parts = [head, body, signature]
        at = choice.randrange(len(parts[part]) - 1)
        instead = choice.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=.! \x00é")
        parts[part] = parts[part][:at] + instead + parts[part][at + 1 :]
        changed = ".".join(parts)
        if changed != good:
            assert await judging.principal(changed) is None, changed


async def test_a_token_without_the_name_of_its_key(file: Path) -> None:
    assert await judge(file).principal(token(name=None)) == Principal("jwt:alice")
    put(file, public("ES256", "one"), public("RS256", "two"))
    assert await judge(file).principal(token(name=None)) is None


async def test_a_token_is_verified_once_and_expires(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judging = judge(file, skew=0.0)
    verified = []
    real = jwt.decode
    monkeypatch.setattr(jwts.jwt, "decode", lambda *given, **rest: verified.append(1) or real(*given, **rest))
    short = token(exp=time.time() + 5)
    for _ in range(5):
        assert await judging.principal(short) == Principal("jwt:alice")
    assert len(verified) == 1
    await asyncio.sleep(5.2)
    assert await judging.principal(short) is None


async def test_what_is_remembered_is_bounded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwts, "MOST_KNOWN", 3)
    judging = judge(file)
    for number in range(10):
        assert await judging.principal(token(sub=f"client-{number}")) == Principal(f"jwt:client-{number}")
    assert len(judging._known) == 3


async def test_a_key_is_good_at_once_when_it_was_added(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PAUSE", 60.0)
    judging = judge(file)
    old, new = token(), token("EdDSA", "two")
    assert [await judging.principal(each) for each in (old, new)] == [Principal("jwt:alice"), None]
    put(file, public("ES256", "one"), public("EdDSA", "two"))
    assert [await judging.principal(each) for each in (old, new)] == [Principal("jwt:alice")] * 2


async def test_a_key_that_is_withdrawn_is_not_accepted_any_more(file: Path) -> None:
    judging = judge(file)
    old, new = token(), token("RS256", "two")
    assert await judging.principal(old) == Principal("jwt:alice")
    put(file, public("ES256", "one"), public("RS256", "two"))
    assert await judging.principal(new) == Principal("jwt:alice")
    assert await judging.principal(old) == Principal("jwt:alice")
    put(file, public("RS256", "two"))
    assert await judging.principal(old) is None
    assert await judging.principal(new) == Principal("jwt:alice")


class TestKeysBehindAUrl:
    @pytest.fixture
    def served(self) -> list[bytes | ConfigurationError]:
        return [a_set(public("ES256", "one"))]

    @pytest.fixture
    def judging(self, served: list[bytes | ConfigurationError]) -> Jwts:
        self.fetched = 0

        def fetch(url: str) -> bytes:
            assert url == "https://id.example/keys"
            self.fetched += 1
            if isinstance(served[0], ConfigurationError):
                raise served[0]
            return served[0]

        return Jwts(JwtSettings("https://id.example/keys", AUDIENCE), fetch)

    async def test_they_are_fetched_once(self, judging: Jwts) -> None:
        await judging.refresh()
        for _ in range(5):
            assert await judging.principal(token()) == Principal("jwt:alice")
        assert self.fetched == 1

    async def test_a_new_key_is_fetched_when_it_is_named(
        self, judging: Jwts, served: list[bytes | ConfigurationError], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await judging.refresh()
        served[0] = a_set(public("RS256", "two"))
        # Not at once: unknown names must not make this broker ask for ever.
        for _ in range(20):
            assert await judging.principal(token("RS256", "two")) is None
        assert self.fetched == 1
        monkeypatch.setattr(jwts, "SOONEST", 0.0)
        assert await judging.principal(token("RS256", "two")) == Principal("jwt:alice")
        assert await judging.principal(token()) is None

    async def test_many_that_wait_for_a_new_key_ask_once(
        self, judging: Jwts, served: list[bytes | ConfigurationError]
    ) -> None:
        served[0] = a_set(public("RS256", "two"))
        new = token("RS256", "two")
        found = await asyncio.gather(*(judging.principal(new) for _ in range(50)))
        assert found == [Principal("jwt:alice")] * 50
        assert self.fetched == 1

    async def test_keys_that_cannot_be_fetched_leave_those_before(
        self, judging: Jwts, served: list[bytes | ConfigurationError], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await judging.refresh()
        served[0] = ConfigurationError("no answer", field="jwt_keys")
        monkeypatch.setattr(jwts, "SOONEST", 0.0)
        monkeypatch.setattr(jwts, "REFRESH", 0.0)
        assert await judging.principal(token("RS256", "two")) is None
        assert await judging.principal(token()) == Principal("jwt:alice")
        assert self.fetched > 1


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": 7}',
        b'{"keys": []}',
        b'{"keys": [7]}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}]}',
        b'{"keys": [{"kty": "RSA", "n": "", "e": ""}]}',
    ],
)
def test_sets_without_a_usable_key_are_refused(raw: bytes) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_keys(raw)
    assert refused.value.field == "jwt_keys"
    assert "c2VjcmV0" not in refused.value.message


def test_keys_do_not_come_over_a_plain_connection() -> None:
    with pytest.raises(ConfigurationError, match="https"):
        Jwts(JwtSettings("http://id.example/keys", AUDIENCE))
    Jwts(JwtSettings("http://127.0.0.1:8000/keys", AUDIENCE))


def test_a_url_holds_no_secrets() -> None:
    with pytest.raises(ConfigurationError, match="no user and no password") as refused:
        Jwts(JwtSettings("https://me:hidden@id.example/keys", AUDIENCE))
    assert "hidden" not in refused.value.message


@pytest.mark.parametrize("path", ["/keys?token=hidden", "/keys#hidden", "/keys?to ken=hidden"])
async def test_what_a_url_may_hold_is_not_shown(path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    judging = Jwts(JwtSettings(f"http://127.0.0.1:{port}{path}", AUDIENCE))
    with pytest.raises(
        ConfigurationError, match=rf"cannot be fetched from http://127\.0\.0\.1:{port}/keys: "
    ) as refused:
        await judging.refresh()
    assert "hidden" not in refused.value.message
