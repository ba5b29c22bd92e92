"""What counts of the headers of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.access import Principal
from broker.errors import Unauthenticated
from broker.wire.credentials.authentication import Credentials
from broker.wire.credentials.files import WatchedFile
from broker.wire.credentials.tokens import hash_of, read_tokens

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "halfmq_good"


class Context:
    """As much of a call as is looked at."""

    def __init__(self, *shown: Any, peer: str = "ipv4:10.1.2.3:5000", tls: bool = False) -> None:
        self._shown, self._peer, self._tls = shown, peer, tls

    def invocation_metadata(self) -> tuple[tuple[str, Any], ...] | None:
        return tuple(("authorization", value) for value in self._shown) or None

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"transport_security_type": [b"ssl"]} if self._tls else {}


@pytest.fixture
def tokens(tmp_path: Path) -> WatchedFile[dict[str, Principal]]:
    file = tmp_path / "tokens.toml"
    file.write_text(f'[alice]\nsha256 = ["{hash_of(TOKEN)}"]\n')
    return WatchedFile(str(file), read_tokens, field="access_tokens")


@pytest.mark.parametrize("shown", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER   {TOKEN}  "])
async def test_forms_of_a_token(tokens: WatchedFile[dict[str, Principal]], shown: str) -> None:
    assert await Credentials(tokens, plain=True).principal(Context(shown)) == Principal("alice", address="10.1.2.3")


@pytest.mark.parametrize(
    "shown",
    [
        (),
        ("",),
        (TOKEN,),
        (f"Bearer{TOKEN}",),
        (f"Bearer\u00a0{TOKEN}",),
        (f"Bearer \u00a0{TOKEN}",),
        (f"Bearer {TOKEN}\u2003",),
        (f"Bearer \t{TOKEN}",),
        (f"Bearer {TOKEN}\n",),
        (f"Bearer {TOKEN}\x00",),
        (f"Bearer {TOKEN.replace('o', chr(0x43E))}",),
        (f"Bearer {TOKEN}\udc80",),
        (f"Bearer {TOKEN}".encode(),),
        (f"Bearer {TOKEN}", f"Bearer {TOKEN}"),
        (f"Bearer {TOKEN}", b"\xff"),
    ],
)
async def test_what_is_no_token(tokens: WatchedFile[dict[str, Principal]], shown: tuple[Any, ...]) -> None:
    with pytest.raises(Unauthenticated):
        await Credentials(tokens, plain=True).principal(Context(*shown))


async def test_tokens_go_over_tls_unless_told_otherwise(tokens: WatchedFile[dict[str, Principal]]) -> None:
    assert (await Credentials(tokens).principal(Context(f"Bearer {TOKEN}", tls=True))).name == "alice"
    with pytest.raises(Unauthenticated):
        await Credentials(tokens).principal(Context(f"Bearer {TOKEN}"))
