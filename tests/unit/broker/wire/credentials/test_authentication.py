"""What counts of the headers of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.access import Principal
from broker.errors import Unauthenticated
from broker.wire.credentials import authentication, files
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


def put(file: Path, content: str) -> None:
    file.write_text(content)


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


class TestATokenThatIsShownAgain:
    """It is known without its hash, for as long as nothing has changed."""

    @pytest.fixture
    def file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(files, "PAUSE", 0.0)
        file = tmp_path / "tokens.toml"
        file.write_text(f'[alice]\nsha256 = ["{hash_of(TOKEN)}"]\n[bob]\nsha256 = ["{hash_of("other")}"]\n')
        return file

    @pytest.fixture
    def credentials(self, file: Path) -> Credentials:
        return Credentials(WatchedFile(str(file), read_tokens, field="access_tokens"))

    @staticmethod
    def known(credentials: Credentials, context: Context) -> Principal | None:
        known = credentials.known(context, context.invocation_metadata() or ())
        return None if known is None else known.principal

    async def test_on_its_connection(self, credentials: Credentials) -> None:
        call = Context(f"Bearer {TOKEN}", tls=True)
        assert self.known(credentials, call) is None
        alice = await credentials.principal(call)
        assert self.known(credentials, call) is alice == Principal("alice", address="10.1.2.3")
        assert await credentials.principal(call) is alice
        for other in (
            Context(f"Bearer {TOKEN}", tls=True, peer="ipv4:10.1.2.3:5001"),
            Context("Bearer other", tls=True),
            Context(f"Bearer {TOKEN}x", tls=True),
            Context(f"Bearer {TOKEN}"),
            Context(f"Bearer {TOKEN}", f"Bearer {TOKEN}", tls=True),
            Context(f"Bearer {TOKEN}".encode(), tls=True),
            Context(f"Bearer {TOKEN}\udc80", tls=True),
            Context(tls=True),
        ):
            assert self.known(credentials, other) is None
        # Who comes by the same connection, as through a proxy, is somebody else.
        assert (await credentials.principal(Context("Bearer other", tls=True))).name == "bob"
        assert self.known(credentials, call) is None
        assert await credentials.principal(call) == alice

    async def test_not_by_a_file_that_was_replaced(self, credentials: Credentials, file: Path) -> None:
        call = Context(f"Bearer {TOKEN}", tls=True)
        await credentials.principal(call)
        put(file, f'[alice]\nsha256 = ["{hash_of(TOKEN)}"]\nroles = ["ops"]\n')
        assert self.known(credentials, call) is None
        assert (await credentials.principal(call)).roles == {"ops"}
        assert self.known(credentials, call) is not None
        put(file, f'[bob]\nsha256 = ["{hash_of("other")}"]\n')
        assert self.known(credentials, call) is None
        with pytest.raises(Unauthenticated):
            await credentials.principal(call)
        assert self.known(credentials, call) is None

    async def test_how_many_are_remembered_is_bounded(
        self, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(authentication, "MOST_PEERS", 10)
        for port in range(5000, 5100):
            call = Context(f"Bearer {TOKEN}", tls=True, peer=f"ipv4:10.1.2.3:{port}")
            await credentials.principal(call)
            assert self.known(credentials, call) is not None
            assert len(credentials._last) <= 10
        with pytest.raises(Unauthenticated):
            await credentials.principal(Context("Bearer wrong", tls=True, peer="ipv4:10.9.9.9:1"))
        assert "ipv4:10.9.9.9:1" not in credentials._last
