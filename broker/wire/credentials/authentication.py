"""Who makes a call: the first thing that is shown counts, and something wrong is not made up for by something right."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from broker.domain.access import Principal
from broker.errors import Unauthenticated
from broker.wire.credentials.tokens import hash_of
from broker.wire.throttled_log import ThrottledLog

if TYPE_CHECKING:
    from broker.wire.credentials.files import WatchedFile
    from broker.wire.credentials.jwt import Jwts

_of_strangers = ThrottledLog(logging.getLogger("halfmq.access"))

BEARER = "bearer "
LONGEST = 8192
"""Characters of a token."""
CERTIFICATE = "cert:"
"""Before the names of those who show a certificate: each kind of credential has names of its own."""
_ENCRYPTED = b"ssl"


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

    async def principal(self, context: Any) -> Principal:
        """Who makes a call, with the address that it came from.

        Raises:
            Unauthenticated: nothing is shown, or something that is not accepted; it does not tell which.
        """
        shown = [value for name, value in context.invocation_metadata() or () if name == "authorization"]
        if shown:
            found = await self._by_token(shown, context) if len(shown) == 1 else None
        else:
            found = self._by_certificate(context)
        if found is None:
            what = "what is shown is not accepted" if shown else "nothing is shown"
            _of_strangers.info("a call from %s is refused: %s", context.peer(), what)
            raise Unauthenticated
        return replace(found, address=address_of(context.peer()))

    async def _by_token(self, shown: list[str | bytes], context: Any) -> Principal | None:
        (text,) = shown
        # Letters beyond ASCII are no part of any token; gRPC passes on whatever bytes a client sends.
        if not isinstance(text, str) or not text.isascii() or text[: len(BEARER)].lower() != BEARER:
            return None
        if not (self.plain or _is_encrypted(context)):
            return None
        token = text[len(BEARER) :].strip(" ")
        if len(token) > LONGEST:
            return None
        found = self.tokens.content().get(hash_of(token)) if self.tokens is not None else None
        if found is None and self.jwts is not None and token.count(".") == 2:
            found = await self.jwts.principal(token)
        if found is None and self.tokens is not None:
            found = self.tokens.content(anew=True).get(hash_of(token))
        return found

    def _by_certificate(self, context: Any) -> Principal | None:
        if not self.certificates:
            return None
        names = context.auth_context().get("x509_common_name", ())
        try:
            return Principal(CERTIFICATE + names[0].decode()) if len(names) == 1 and names[0] else None
        except UnicodeDecodeError:
            return None


def _is_encrypted(context: Any) -> bool:
    return _ENCRYPTED in context.auth_context().get("transport_security_type", ())


def address_of(peer: str) -> str:
    """The address in gRPC's name of a peer, such as `ipv6:%5B::1%5D:1234`; empty if there is none."""
    kind, _, rest = peer.partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return ""
    return unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]
