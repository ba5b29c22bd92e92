"""Who may call: signatures in every form that official clients give them, and the file of keys."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from broker.errors import BrokerError, ConfigurationError
from broker.rocketmq import calls
from broker.rocketmq.calls import Caller, Callers, read_secrets
from broker.rocketmq.codes import Unauthorized, code_of
from broker.rocketmq.protocol import Code
from broker.wire.credentials import files
from broker.wire.credentials.files import WatchedFile
from support.rocketmq_protocol import signature
from unit.broker.rocketmq.fakes import Keys

if TYPE_CHECKING:
    from pathlib import Path

TIME = "20260101T101112Z"
SECRETS = {"key": "secret", "other": "its own", "k:e": "s:e"}


class Context:
    """As much of a call as is looked at."""

    def __init__(self, seconds: float | None = None, **headers: Any) -> None:
        self._seconds = seconds
        self._headers = tuple((name.replace("_", "-"), value) for name, value in headers.items())

    def invocation_metadata(self) -> tuple[tuple[str, Any], ...] | None:
        return self._headers or None

    def time_remaining(self) -> float | None:
        return self._seconds


def signed(authorization: str, time: str = TIME) -> Context:
    return Context(authorization=authorization, x_mq_date_time=time, x_mq_client_id="me")


def test_a_caller_is_who_its_headers_say() -> None:
    context = Context(12.5, x_mq_client_id="me", x_mq_namespace="shop", x_mq_language="JAVA")
    assert Callers().caller(context) == Caller("me", "shop", 12.5, language="JAVA")
    assert Callers().caller(Context()) == Caller("", "", None)
    assert Callers().caller(Context(x_mq_client_id=b"bytes")) == Caller("", "", None)


def test_a_caller_without_a_name_is_refused_where_it_needs_one() -> None:
    assert Caller("me").named() == Caller("me")
    with pytest.raises(BrokerError) as refused:
        Caller("").named()
    assert code_of(refused.value) == Code.CLIENT_ID_REQUIRED


@pytest.mark.parametrize("name", ["x" * 256, "a\nb", "a\x00b"])
def test_a_name_that_cannot_be_kept_is_refused(name: str) -> None:
    assert Callers().caller(Context(x_mq_client_id="x" * 255)).client_id == "x" * 255
    with pytest.raises(BrokerError) as refused:
        Callers().caller(Context(x_mq_client_id=name))
    assert code_of(refused.value) == Code.BAD_REQUEST
    assert refused.value.field == "x-mq-client-id"


def test_without_keys_nothing_is_looked_at() -> None:
    for authorization in ("", "nonsense", signature("key", "wrong", TIME)):
        assert Callers().caller(signed(authorization)).client_id == "me"


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("scope", ["", "//Rocketmq", "/cn-hangzhou/RocketMQ", "/"])
def test_every_clients_form_of_a_signature_is_taken(upper: bool, scope: str) -> None:
    authorization = signature("key", "secret", TIME, scope=scope, upper=upper)
    assert Callers(Keys(SECRETS)).caller(signed(authorization)).client_id == "me"


@pytest.mark.parametrize("time", ["20200101T000000Z", "2026-01-01T10:11:12.123456+08:00", "20991231T235959Z"])
def test_the_time_is_signed_and_not_judged(time: str) -> None:
    """Clients tell their local time as if it was Greenwich's."""
    authorization = signature("key", "secret", time)
    assert Callers(Keys(SECRETS)).caller(signed(authorization, time)).client_id == "me"


@pytest.mark.parametrize("form", ["%Y%m%dT%H%M%SZ", "%Y-%m-%dT%H:%M:%S.%f+00:00", "%Y-%m-%dT%H:%M:%S"])
def test_a_signature_is_good_for_a_window_of_time_where_one_is_set(form: str) -> None:
    callers = Callers(Keys(SECRETS), window=300)
    for seconds, taken in ((0, True), (-290, True), (290, True), (-310, False), (310, False), (-86_400 * 365, False)):
        time = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime(form)
        call = signed(signature("key", "secret", time), time)
        if taken:
            assert callers.caller(call).client_id == "me"
            continue
        with pytest.raises(Unauthorized, match="300 s are allowed"):
            callers.caller(call)


@pytest.mark.parametrize("time", ["", "now", "20261332T000000Z", "1"])
def test_a_time_that_is_none_is_refused_where_a_window_is_set(time: str) -> None:
    with pytest.raises(Unauthorized, match="must look like"):
        Callers(Keys(SECRETS), window=300).caller(signed(signature("key", "secret", time), time))


def test_each_key_has_its_own_secret() -> None:
    callers = Callers(Keys(SECRETS))
    for key, secret in SECRETS.items():
        assert callers.caller(signed(signature(key, secret, TIME))).client_id == "me"
        for another in {*SECRETS.values(), ""} - {secret}:
            with pytest.raises(Unauthorized):
                callers.caller(signed(signature(key, another, TIME)))


GOOD = signature("key", "secret", TIME)


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        " ",
        "MQv2-HMAC-SHA1",
        "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=",
        GOOD.replace("MQv2-HMAC-SHA1 ", ""),
        GOOD.replace("key", "nobody"),
        GOOD.replace("key", "KEY"),
        GOOD.replace("key", ""),
        GOOD[:-1],
        f"{GOOD}0",
        GOOD[:-1] + ("0" if GOOD[-1] != "0" else "1"),
        GOOD.partition(", Signature")[0],
        GOOD.replace("SignedHeaders=x-mq-date-time", "SignedHeaders=x-mq-client-id"),
        GOOD.replace("key", "key\x1fmore"),
        GOOD.replace("key", "key more"),
        GOOD.replace(" Signature", "\tSignature"),
        GOOD.replace("=key", f"={'a' * 100_000}"),
        GOOD.replace(" Signature", f"{' ' * 100_000}signature"),
        GOOD + "\u00e9",
        # Nobody's secret, which a guess at the broker's own stand-in for it would be.
        signature("nobody", "-", TIME),
        signature("", "-", TIME),
    ],
)
def test_any_other_signature_is_refused(authorization: str) -> None:
    with pytest.raises(Unauthorized) as refused:
        Callers(Keys(SECRETS)).caller(signed(authorization))
    assert code_of(refused.value) == Code.UNAUTHORIZED
    assert "secret" not in refused.value.message.replace("secret key", "")


def test_who_calls_is_found_out_without_the_request() -> None:
    callers = Callers(Keys(SECRETS), window=0)
    assert callers.know(signed(GOOD))
    # That it does not tell its id is refused by the call itself.
    assert callers.know(Context(authorization=GOOD, x_mq_date_time=TIME))
    assert not callers.know(signed(GOOD.replace("key", "nobody")))
    assert not callers.know(Context())
    assert not Callers(Keys(SECRETS), window=300).know(signed(GOOD))
    assert Callers().know(Context())


class Twice(Context):
    """A call that shows a header two times."""

    def __init__(self, name: str, value: str, **headers: Any) -> None:
        super().__init__(**headers)
        self._headers = (*self._headers, (name, value))


@pytest.mark.parametrize(("name", "value"), [("authorization", "x"), ("authorization", GOOD), ("x-mq-date-time", TIME)])
def test_of_two_headers_none_counts(name: str, value: str) -> None:
    with pytest.raises(Unauthorized):
        Callers(Keys(SECRETS)).caller(Twice(name, value, authorization=GOOD, x_mq_date_time=TIME))


def test_all_that_is_not_signed_well_gets_one_answer() -> None:
    shown = [
        Context(),
        signed("nonsense"),
        signed(GOOD, "20260101T101113Z"),
        signed(signature("nobody", "secret", TIME)),
        signed(signature("key", "wrong", TIME)),
    ]
    answers = set()
    for context in shown:
        with pytest.raises(Unauthorized) as refused:
            Callers(Keys(SECRETS)).caller(context)
        answers.add(refused.value.message)
    assert len(answers) == 1


def test_a_signature_belongs_to_its_time() -> None:
    with pytest.raises(Unauthorized):
        Callers(Keys(SECRETS)).caller(signed(GOOD, "20260101T101113Z"))
    with pytest.raises(Unauthorized):
        Callers(Keys(SECRETS)).caller(Context(authorization=GOOD))
    with pytest.raises(Unauthorized):
        Callers(Keys(SECRETS)).caller(Context(x_mq_client_id="me"))


def test_the_signature_is_the_one_of_the_protocol() -> None:
    own = hmac.new(b"secret", TIME.encode(), hashlib.sha1).hexdigest()
    authorization = f"MQv2-HMAC-SHA1 Credential=key, SignedHeaders=x-mq-date-time, Signature={own}"
    assert authorization == GOOD


def test_an_access_key_has_two_secrets_while_one_is_replaced() -> None:
    keys = Keys({"key": "old", "other": "its own"})
    callers = Callers(keys)
    old, new = (signed(signature("key", secret, TIME)) for secret in ("old", "new"))
    other = signed(signature("other", "its own", TIME))

    def known() -> list[bool]:
        return [callers.know(call) for call in (old, new, other)]

    assert known() == [True, False, True]
    keys.put({"key": ("old", "new"), "other": "its own"})
    assert known() == [True, True, True]
    keys.put({"key": "new", "other": "its own"})
    assert known() == [False, True, True]
    assert not callers.know(signed(signature("other", "new", TIME)))


def test_a_secret_is_good_at_once_when_it_was_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PAUSE", 60.0)
    file = tmp_path / "keys"
    file.write_text("key:old")
    callers = Callers(WatchedFile(str(file), read_secrets, field="rocketmq_keys"))
    calls = [signed(signature("key", secret, TIME)) for secret in ("old", "new")]
    assert [callers.know(call) for call in calls] == [True, False]
    file.write_text("key:old\nkey:new")
    assert [callers.know(call) for call in calls] == [True, True]


def test_a_call_that_lasts_ends_with_its_key_and_not_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys({"key": ("old", "new")})
    callers = Callers(keys, window=300)
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    call = signed(signature("key", "old", time), time)
    assert callers.caller(call).client_id == "me"

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(hours=1)

    monkeypatch.setattr(calls, "datetime", Later)
    assert not callers.know(call)
    callers.look_again(call)
    keys.put({"key": "new"})
    with pytest.raises(Unauthorized):
        callers.look_again(call)
    Callers().look_again(Context())


def test_the_file_of_keys() -> None:
    text = "# who may call\n\n shop:its secret \r\nother:with:colons\n  # no more\nshop:a new one\n"
    assert read_secrets(text.encode()) == {"shop": (b"its secret", b"a new one"), "other": (b"with:colons",)}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a:b\nsecret-without-key", 2, "access-key:secret-key"),
        (":hidden", 1, "access-key:secret-key"),
        ("a:", 1, "access-key:secret-key"),
        ("# first\na b:c", 2, "access-key:secret-key"),
        ("a,b:c", 1, "access-key:secret-key"),
        ("a/b:c", 1, "access-key:secret-key"),
        ("a:hidden\nb:hidden\na:hidden", 3, "there already"),
        ("a:one\na:two\na:three\na:four\na:hidden", 5, "up to 4"),
    ],
)
def test_a_line_that_cannot_be_is_named_and_not_shown(text: str, line: int, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_secrets(text.encode())
    assert refused.value.field == "rocketmq_keys"
    assert f"Line {line} of" in refused.value.message
    assert words in refused.value.message
    assert not any(secret in refused.value.message for secret in ("hidden", "secret-without-key"))


@pytest.mark.parametrize(("content", "why"), [(b"", "has none"), (b"# nobody\n", "has none"), (b"a:\xff", "UTF-8")])
def test_a_file_that_says_nothing_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        read_secrets(content)
    assert refused.value.field == "rocketmq_keys"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigurationError, match="cannot be read") as refused:
            WatchedFile(str(path), read_secrets, field="rocketmq_keys")
        assert refused.value.field == "rocketmq_keys"
