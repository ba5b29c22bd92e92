"""Who makes a call: the first thing that is shown counts, and something wrong is not made up for by something right."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hmac import compare_digest
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from broker.domain.access import Principal
from broker.errors import Unauthenticated
from broker.wire.credentials.tokens import hash_of
from broker.wire.throttled_log import ThrottledLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.wire.credentials.files import WatchedFile
    from broker.wire.credentials.jwt import Jwts

_of_strangers = ThrottledLog(logging.getLogger("halfmq.access"))

BEARER = "bearer "
LONGEST = 8192
"""Characters of a token."""
CERTIFICATE = "cert:"
"""Before the names of those who show a certificate: each kind of credential has names of its own."""
MOST_PEERS = 10_000
"""Connections whose address, and the principal that was known there last, are remembered."""
_ENCRYPTED = b"ssl"


@dataclass(frozen=True, slots=True)
class Known:
    """Who made the last call on a connection.

    Attributes:
        found: the principal.
        principal: the same with its address.
        text: the header that was shown; empty: a certificate.
        content: of the file of tokens, if that has the token.
        callers: what is made of the principal, by method.
    """

    found: Principal
    principal: Principal
    text: str = field(repr=False)
    content: object = field(repr=False)
    callers: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What is accepted.

    Attributes:
        tokens: principals by the hashes of bearer tokens.
        jwts: judges JWTs.
        certificates: whether the subject of a client's certificate is a principal.
        plain: accept tokens from connections without TLS, where others can read them.
    """

    tokens: WatchedFile[dict[str, Principal]] | None = None
    jwts: Jwts | None = None
    certificates: bool = False
    plain: bool = False
    _last: dict[str, Known] = field(default_factory=dict, init=False, repr=False, compare=False)

    def known(self, context: Any, headers: Sequence[tuple[str, str | bytes]]) -> Known | None:
        """Who makes a call, if the call before it on the same connection showed the same token of the file.

        As long as the file has not changed, that needs no look at the token's hash.
        """
        last = self._last.get(context.peer())
        if last is None or self.tokens is None or last.content is not self.tokens.content():
            return None
        text: str | bytes | None = None
        for name, value in headers:
            if name == "authorization":
                if text is not None:
                    return None
                text = value
        if not isinstance(text, str) or not text.isascii() or not compare_digest(text, last.text):
            return None
        return last if self.plain or _is_encrypted(context) else None

    async def principal(self, context: Any) -> Principal:
        """Who makes a call, with the address that it came from.

        Raises:
            Unauthenticated: nothing is shown, or something that is not accepted; it does not tell which.
        """
        shown, peer = _shown(context.invocation_metadata() or ()), context.peer()
        text, content = self._authorization(shown, context), None
        if not shown:
            found = self._by_certificate(context)
        elif text is not None:
            found, content = await self._by_token(text[len(BEARER) :].strip(" "))
        else:
            found = None
        if found is None:
            what = "what is shown is not accepted" if shown else "nothing is shown"
            _of_strangers.info("a call from %s is refused: %s", peer, what)
            raise Unauthenticated
        last = self._last.get(peer)
        if last is None or last.found is not found or last.content is not content:
            if len(self._last) >= MOST_PEERS:
                self._last.clear()
            last = Known(found, replace(found, address=address_of(peer)), text or "", content)
            self._last[peer] = last
        return last.principal

    async def _by_token(self, token: str) -> tuple[Principal | None, object]:
        """Whose token it is, and the content of the file that has it; without content it is a JWT."""
        hashed = hash_of(token)
        content = None if self.tokens is None else self.tokens.content()
        if content is not None and (known := content.get(hashed)) is not None:
            return known, content
        if self.jwts is not None and token.count(".") == 2 and (named := await self.jwts.principal(token)) is not None:
            return named, None
        content = None if self.tokens is None else self.tokens.content(anew=True)
        return (None if content is None else content.get(hashed)), content

    def _authorization(self, shown: list[str | bytes], context: Any) -> str | None:
        """The header with a token, if there is one, and it may be looked at."""
        text = shown[0] if len(shown) == 1 else None
        # Letters beyond ASCII are no part of any token; gRPC passes on whatever bytes a client sends.
        if not isinstance(text, str) or not text.isascii() or text[: len(BEARER)].lower() != BEARER:
            return None
        if not (self.plain or _is_encrypted(context)) or len(text) > LONGEST + len(BEARER):
            return None
        return text

    def _by_certificate(self, context: Any) -> Principal | None:
        if not self.certificates:
            return None
        names = context.auth_context().get("x509_common_name", ())
        try:
            return Principal(CERTIFICATE + names[0].decode()) if len(names) == 1 and names[0] else None
        except UnicodeDecodeError:
            return None


def _shown(headers: Iterable[tuple[str, str | bytes]]) -> list[str | bytes]:
    return [value for name, value in headers if name == "authorization"]


def _is_encrypted(context: Any) -> bool:
    return _ENCRYPTED in context.auth_context().get("transport_security_type", ())


@lru_cache(maxsize=MOST_PEERS)
def address_of(peer: str) -> str:
    """The address in gRPC's name of a peer, such as `ipv6:%5B::1%5D:1234`; empty if there is none."""
    kind, _, rest = peer.partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return ""
    return unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]
