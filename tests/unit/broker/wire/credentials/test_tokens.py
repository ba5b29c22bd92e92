"""Bearer tokens from a file."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from broker.domain.access import Principal
from broker.errors import ConfigurationError, Unauthenticated
from broker.wire.credentials import files
from broker.wire.credentials.authentication import Credentials
from broker.wire.credentials.files import WatchedFile
from broker.wire.credentials.tokens import PREFIX, hash_of, new_token, read_tokens, with_token

if TYPE_CHECKING:
    from pathlib import Path

A, B, C = (hash_of(text) for text in "abc")


def test_tokens_cannot_be_guessed_and_are_found_by_their_hash() -> None:
    tokens = {new_token() for _ in range(1000)}
    assert len(tokens) == 1000
    assert all(token.startswith(PREFIX) and len(token) == len(PREFIX) + 43 for token in tokens)
    token = tokens.pop()
    assert read_tokens(f'[alice]\nsha256 = ["{hash_of(token)}"]'.encode()) == {hash_of(token): Principal("alice")}


def test_what_the_file_holds() -> None:
    text = f"""
    # of the shop
    [alice]
    sha256 = ["{A}", "{B}"]
    roles = ["shop", "ops"]
    tenant = "acme"

    ["till-3@shop.example"]
    sha256 = ["{C}"]
    """
    alice = Principal("alice", frozenset({"shop", "ops"}), "acme")
    assert read_tokens(text.encode()) == {A: alice, B: alice, C: Principal("till-3@shop.example")}
    assert read_tokens(b"") == {}


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        "alice = 1",
        "[alice]",
        "[alice]\nsha256 = []",
        f'[alice]\nsha256 = "{A}"',
        f'[alice]\nsha256 = ["{A[:-1]}"]',
        f'[alice]\nsha256 = ["{A.upper()}"]',
        f'[alice]\nsha256 = ["{A}", 7]',
        f'[alice]\nsha256 = ["{A}"]\ntoken = "secret"',
        f'[alice]\nsha256 = ["{A}"]\nroles = "shop"',
        f'[alice]\nsha256 = ["{A}"]\nroles = ["a b"]',
        f'[alice]\nsha256 = ["{A}"]\ntenant = 7',
        f'[alice]\nsha256 = ["{A}"]\ntenant = "a%b"',
        f'["a b"]\nsha256 = ["{A}"]',
        f'[alice]\nsha256 = ["{A}"]\n[bob]\nsha256 = ["{A}"]',
        f'[alice]\nsha256 = ["{A}"]\n[alice]\nsha256 = ["{B}"]',
        "\ud800",
    ],
)
def test_a_wrong_file_is_refused_without_its_secrets(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_tokens(text.encode("utf-8", "surrogatepass"))
    assert refused.value.field == "access_tokens"
    assert A[:-1] not in refused.value.message
    assert "secret" not in refused.value.message


class TestTheFileWhileItServes:
    @pytest.fixture(autouse=True)
    def without_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "PAUSE", 0.0)

    def test_it_is_read_again_when_it_was_replaced(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens.toml"
        file.write_text(f'[alice]\nsha256 = ["{A}"]')
        watched = WatchedFile(str(file), read_tokens, field="access_tokens")
        first = watched.content()
        assert watched.content() is first
        other = tmp_path / "new"
        other.write_text(f'[bob]\nsha256 = ["{B}"]')
        os.replace(other, file)
        assert watched.content() == {B: Principal("bob")}

    def test_one_that_is_wrong_or_gone_changes_nothing(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        file = tmp_path / "tokens.toml"
        file.write_text(f'[alice]\nsha256 = ["{A}"]')
        watched = WatchedFile(str(file), read_tokens, field="access_tokens")
        first = watched.content()
        file.write_text(f'[alice]\nsha256 = ["{A}')
        assert watched.content() is first
        assert watched.content() is first
        file.unlink()
        assert watched.content() is first
        (logged,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert "what it held before stays in use" in logged.getMessage()
        file.write_text(f'[bob]\nsha256 = ["{B}"]')
        assert watched.content() == {B: Principal("bob")}

    def test_at_the_start_it_has_to_be_right(self, tmp_path: Path) -> None:
        for content in (None, "[alice]"):
            if content is not None:
                (tmp_path / "tokens.toml").write_text(content)
            with pytest.raises(ConfigurationError) as refused:
                WatchedFile(str(tmp_path / "tokens.toml"), read_tokens, field="access_tokens")
            assert refused.value.field == "access_tokens"


def test_it_is_not_looked_at_for_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PAUSE", 60.0)
    file = tmp_path / "tokens.toml"
    file.write_text(f'[alice]\nsha256 = ["{A}"]')
    watched = WatchedFile(str(file), read_tokens, field="access_tokens")
    file.unlink()
    file.write_text(f'[bob]\nsha256 = ["{B}"]')
    assert watched.content() == {A: Principal("alice")}
    # But for what is not in it.
    assert watched.content(anew=True) == watched.content() == {B: Principal("bob")}


async def test_a_token_is_good_at_once_when_it_was_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PAUSE", 60.0)
    file = tmp_path / "tokens.toml"
    file.write_bytes(with_token(b"", "alice", hash_of("old"), roles=(), tenant="", replace=False))
    credentials = Credentials(WatchedFile(str(file), read_tokens, field="access_tokens"), plain=True)

    async def name(token: str) -> str:
        return (await credentials.principal(Call(token))).name

    with pytest.raises(Unauthenticated):
        await name("new")
    added = with_token(file.read_bytes(), "alice", hash_of("new"), roles=(), tenant="", replace=False)
    (tmp_path / "new").write_bytes(added)
    os.replace(tmp_path / "new", file)
    assert await name("new") == await name("old") == "alice"


class Call:
    """A call that shows a token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self._token}"),)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"
