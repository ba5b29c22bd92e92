"""Credentials that are wrong in any way are refused, all of them, with one answer; nothing else happens.

HALFMQ_FUZZ_CREDENTIALS is their number, in the classes that judge them and once more over the wire, half of them bearer
tokens and JWTs; HALFMQ_FUZZ_SEED decides what is in them. `scripts/fuzz --credentials N --seed S` sets both.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.access import Principal
from broker.errors import Unauthenticated
from broker.rocketmq.calls import FIELD, Callers, read_secrets
from broker.rocketmq.codes import Unauthorized
from broker.rocketmq.protocol import Code, service_pb2
from broker.wire.credentials.authentication import Credentials
from broker.wire.credentials.files import WatchedFile
from broker.wire.credentials.jwt import Jwts, JwtSettings
from broker.wire.credentials.tokens import read_tokens
from fuzz.authority import ACCESS_KEY, AUDIENCE, ISSUER, SECRET, Authority, Headers, bearer, signed
from fuzz.forged_bearers import ForgedBearers
from fuzz.forged_signatures import ForgedSignatures
from support.brokers import BrokerProcess
from support.raw_calls import Answer, RawCalls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUMBER = int(os.environ.get("HALFMQ_FUZZ_CREDENTIALS") or 15_000)
SEED = int(os.environ.get("HALFMQ_FUZZ_SEED") or random.randrange(1 << 30))
UNDER_WAY = 50
LONGEST = 6000
"""Bytes of headers over the wire; of more, gRPC itself refuses some."""
LOG_LINES = 20
FIND, ROUTE = "/halfmq.v1.QueryService/FindMessages", "/apache.rocketmq.v2.MessagingService/QueryRoute"
UNAUTHENTICATED, DENIED = 16, 7


class Context:
    """As much of a call as is looked at, with headers as gRPC hands them on."""

    def __init__(self, headers: Headers) -> None:
        self._headers = tuple(
            (name, base64.b64decode(value) if name.endswith("-bin") else _text(value)) for name, value in headers
        )

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._headers

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    def time_remaining(self) -> None:
        return None


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def credentials(authority: Authority, tmp_path: Path) -> Credentials:
    (tmp_path / "tokens.toml").write_bytes(authority.tokens_file)
    (tmp_path / "keys.json").write_bytes(authority.key_set)
    tokens = WatchedFile(str(tmp_path / "tokens.toml"), read_tokens, field="access_tokens")
    return Credentials(tokens, Jwts(JwtSettings(str(tmp_path / "keys.json"), AUDIENCE, ISSUER)), plain=True)


def told(wrong: Counter[str], answers: set[Any]) -> str:
    """For people."""
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(wrong.items()))
    return f"\nseed {SEED}\n{kinds}\n{wrong.total():,} in all, {len(answers)} answer: {answers}"


@pytest.mark.timeout(600 + NUMBER // 100)
async def test_no_forged_token_is_accepted(
    authority: Authority, credentials: Credentials, capsys: pytest.CaptureFixture[str]
) -> None:
    for good in (authority.token, authority.jwt(), authority.jwt(algorithm="RS256"), authority.jwt(algorithm="EdDSA")):
        assert (await credentials.principal(Context(bearer(good)))).address == "127.0.0.1"
    forged, wrong, answers = ForgedBearers(random.Random(SEED), authority), Counter[str](), set[Any]()
    for _ in range(NUMBER // 2):
        kind, headers = forged.forge()
        wrong[kind] += 1
        try:
            found: Principal | str = await credentials.principal(Context(headers))
        except Unauthenticated as error:
            answers.add((error.message, error.reason, error.field))
            continue
        except Exception as error:
            found = repr(error)
        pytest.fail(f"seed {SEED}, {kind}: {found}: {headers}")
    with capsys.disabled():
        print(told(wrong, answers))
    assert len(answers) == 1


@pytest.mark.timeout(600 + NUMBER // 100)
def test_no_forged_signature_is_accepted(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keys").write_text(f"{ACCESS_KEY}:{SECRET}\n")
    callers = Callers(WatchedFile(str(tmp_path / "keys"), read_secrets, field=FIELD), window=0)
    callers.caller(Context(signed()))
    forged, wrong, answers = ForgedSignatures(random.Random(SEED), authority), Counter[str](), set[Any]()
    for _ in range(NUMBER // 2):
        kind, headers = forged.forge()
        wrong[kind] += 1
        try:
            found = str(callers.caller(Context(headers)))
        except Unauthorized as error:
            answers.add((error.message, error.reason, error.field))
            continue
        except Exception as error:
            found = repr(error)
        pytest.fail(f"seed {SEED}, {kind}: {found}: {headers}")
    with capsys.disabled():
        print(told(wrong, answers))
    assert len(answers) == 1


@pytest.fixture
def guarded(authority: Authority, tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "tokens.toml").write_bytes(authority.tokens_file)
    (tmp_path / "keys.json").write_bytes(authority.key_set)
    (tmp_path / "keys").write_text(f"{ACCESS_KEY}:{SECRET}\n")
    with BrokerProcess(
        f"sqlite:///{tmp_path / 'halfmq.db'}",
        access=True,
        access_tokens=tmp_path / "tokens.toml",
        access_without_tls=True,
        jwt_keys=tmp_path / "keys.json",
        jwt_audience=AUDIENCE,
        jwt_issuer=ISSUER,
        rocketmq=True,
        rocketmq_keys=tmp_path / "keys",
        rocketmq_signature_window=0,
    ) as broker:
        yield broker


def judged(path: str, answer: Answer) -> tuple[int | None, str]:
    """Code and text; RocketMQ's are in the response."""
    if path != ROUTE or answer.code != 0:
        return answer.code, answer.text
    status = service_pb2.QueryRouteResponse.FromString(answer.response).status
    return status.code, status.message


async def over_the_wire(endpoint: str, authority: Authority, path: str, number: int) -> tuple[Counter[str], set[Any]]:
    """What so many forgeries were answered with; good credentials before and after them are accepted."""
    source = random.Random(SEED)
    forged: Any = ForgedSignatures(source, authority) if path == ROUTE else ForgedBearers(source, authority)
    good = signed() if path == ROUTE else bearer(authority.jwt())
    wrong, answers, left = Counter[str](), set[Any](), iter(range(number))

    async def work(calls: RawCalls) -> None:
        for _ in left:
            kind, headers = forged.forge()
            while sum(len(value) for _, value in headers) > LONGEST:
                kind, headers = forged.forge()
            wrong[kind] += 1
            answer = judged(path, await calls.call(path, headers))
            if answer not in answers:
                answers.add(answer)
                print(kind, headers, answer)

    async with RawCalls.to(endpoint) as calls:
        before = judged(path, await calls.call(path, good))
        await asyncio.gather(*(work(calls) for _ in range(UNDER_WAY)))
        assert before == judged(path, await calls.call(path, good))
        assert before[0] == (Code.FORBIDDEN if path == ROUTE else DENIED)
    return wrong, answers


@pytest.mark.timeout(600 + NUMBER // 50)
@pytest.mark.parametrize("path", [FIND, ROUTE])
def test_a_broker_refuses_them_with_one_answer(
    guarded: BrokerProcess, authority: Authority, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, answers = asyncio.run(over_the_wire(guarded.endpoint, authority, path, NUMBER // 2))
    with capsys.disabled():
        print(f"{told(wrong, answers)}\nlines of the log: {len(guarded.lines)}")
    ((code, _),) = answers
    assert code == (Code.UNAUTHORIZED if path == ROUTE else UNAUTHENTICATED)
    assert guarded.process.poll() is None
    assert guarded.count("[error") == guarded.count("Traceback") == 0, guarded.log
    assert len(guarded.lines) <= LOG_LINES, guarded.log
    assert authority.token not in guarded.log
    assert authority.token[:-1] not in guarded.log
