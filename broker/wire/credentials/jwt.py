"""JSON Web Tokens (RFC 7519), judged by a set of public keys (JWKS, RFC 7517) in a file or behind a URL."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import logging
import re
import time
import urllib.request
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import jwt

from broker.domain.access import Principal
from broker.domain.tenancy import is_tenant
from broker.errors import ConfigurationError
from broker.wire.credentials.files import WatchedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger("halfmq.access")

FIELD = "jwt_keys"
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Of signatures that are verified with a public key. With a shared key, whoever can verify could sign."""
PREFIX = "jwt:"
"""Of names and roles that come from a JWT."""
LONGEST = 8192
"""Characters of a token."""
LONGEST_NAME = 200
"""Characters of a name: rules can name no longer ones."""
MOST_KNOWN = 10_000
"""Tokens that are not verified again until they expire."""
REFRESH = 300.0
SOONEST = 10.0
"""Seconds between two fetches of the keys; and at least, if a token names one that is not known."""
FETCH_TIMEOUT = 5.0
LARGEST_SET = 1024 * 1024
LATEST = 253_402_300_799
"""Seconds since 1970 of the last time that a clock shows: what expires later, or at no number, is no time."""
_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", re.ASCII)
_HTTPS, _LOOPBACK = "https", {"localhost", "127.0.0.1", "::1"}

_Keys = dict[str | None, jwt.PyJWK]
_NO_JWT = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)
"""What reading a text that is none raises; which of them depends on the version of PyJWT."""


@dataclass(frozen=True, slots=True)
class JwtSettings:
    """Which tokens are accepted.

    Attributes:
        keys: a file, or a URL; https, or http on this machine.
        audience: what `aud` has to name: this cluster.
        issuer: what `iss` has to be; empty: any.
        skew: seconds that this machine's clock may differ from the issuer's.
        roles: the claim with the roles, a list or a text with blanks between.
        tenant: the claim with the tenant.
    """

    keys: str
    audience: str
    issuer: str = ""
    skew: float = 30.0
    roles: str = "roles"
    tenant: str = "tenant"


class Jwts:
    """Verifies tokens."""

    def __init__(self, settings: JwtSettings, fetch: Callable[[str], bytes] | None = None) -> None:
        """Reads the keys of a file; those of a URL are fetched by `refresh`.

        Raises:
            ConfigurationError: the file cannot be read, or the URL cannot be used.
        """
        self._settings = settings
        self._fetch = fetch or _fetched
        self._file: WatchedFile[_Keys] | None = None
        self._fetched: _Keys = {}
        self._raw = b""
        self._fetched_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._judged_by: _Keys = {}
        self._known: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()
        named = urlsplit(settings.keys)
        if named.scheme not in {"http", _HTTPS}:
            self._file = WatchedFile(settings.keys, read_keys, field=FIELD)
        elif named.scheme != _HTTPS and named.hostname not in _LOOPBACK:
            raise ConfigurationError("The keys come over https only, except from this machine.", field=FIELD)
        elif "@" in named.netloc:
            raise ConfigurationError("The URL of public keys has no user and no password.", field=FIELD)

    async def refresh(self) -> None:
        """Fetches the keys, if they are behind a URL.

        Raises:
            ConfigurationError: they cannot be fetched; those before stay in use.
        """
        if self._file is None:
            self._fetched_at = time.monotonic()
            raw = await asyncio.to_thread(self._fetch, self._settings.keys)
            if raw != self._raw:
                # Tokens that were verified by other keys are verified again.
                self._fetched, self._raw = read_keys(raw), raw

    async def principal(self, token: str) -> Principal | None:
        """Who a token is for; None if it is not accepted."""
        # Other characters would be skipped by some decoders of base64: one token would have many texts.
        if len(token) > LONGEST or not _FORM.fullmatch(token):
            return None
        digest = hashlib.sha256(token.encode()).digest()
        keys = self._keys()
        if keys is not self._judged_by:
            self._known.clear()
            self._judged_by = keys
        if (known := self._known.get(digest)) is not None:
            if known[1] > time.time():
                return known[0]
            del self._known[digest]
        try:
            header = jwt.get_unverified_header(token)
        except _NO_JWT:
            return None
        name = header.get("kid")
        if name not in keys and await self._came_meanwhile():
            keys = self._judged_by = self._keys()
            self._known.clear()
        key = keys.get(name)
        if key is None and name is None and len(keys) == 1:
            key = next(iter(keys.values()))
        claims = None if key is None else self._claims(token, key)
        found = None if claims is None else self._principal(claims)
        if claims is not None and found is not None:
            self._known[digest] = found, claims["exp"] + self._settings.skew
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return found

    def _keys(self) -> _Keys:
        if self._file is not None:
            return self._file.content()
        if time.monotonic() - self._fetched_at > REFRESH:
            self._start_fetching()
        return self._fetched

    async def _came_meanwhile(self) -> bool:
        """Looks for keys once more, behind a URL unless that was done a moment ago; returns whether it was done."""
        if self._file is not None:
            return self._file.content(anew=True) is not self._judged_by
        if self._fetching is None and time.monotonic() - self._fetched_at < SOONEST:
            return False
        await asyncio.shield(self._start_fetching())
        return True

    def _start_fetching(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._refresh_or_log())
        return self._fetching

    async def _refresh_or_log(self) -> None:
        try:
            await self.refresh()
        except ConfigurationError as error:
            logger.warning("%s: those before stay in use: %s", FIELD, error.message)
        finally:
            self._fetching = None

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, Any] | None:
        settings = self._settings
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name] if key.algorithm_name in ALGORITHMS else [],
                audience=settings.audience,
                issuer=settings.issuer or None,
                leeway=settings.skew,
                options={"require": ["exp", "sub", "aud"]},
            )
        except _NO_JWT as error:
            logger.debug("a JWT is refused: %s", type(error).__name__)
            return None
        ends = claims["exp"]
        return claims if isinstance(ends, int | float) and 0 < ends <= LATEST else None

    def _principal(self, claims: Mapping[str, Any]) -> Principal | None:
        name, tenant = claims["sub"], claims.get(self._settings.tenant, "")
        roles = claims.get(self._settings.roles, [])
        if isinstance(roles, str):
            roles = roles.split()
        if not (isinstance(name, str) and isinstance(tenant, str) and isinstance(roles, list)):
            return None
        if not (0 < len(name) <= LONGEST_NAME and name.isprintable()):
            return None
        if not all(isinstance(role, str) for role in roles) or (tenant and not is_tenant(tenant)):
            return None
        # Whoever issues tokens names their subjects: these must not be taken for those of another kind of credential.
        return Principal(PREFIX + name, frozenset({PREFIX + role for role in roles}), tenant)


def read_keys(raw: bytes) -> _Keys:
    """The public keys of a JWKS by their ids; others than of ALGORITHMS are left out.

    Raises:
        ConfigurationError: it is none, or has no usable key.
    """
    try:
        entries = json.loads(raw)["keys"]
        keys: _Keys = {}
        for entry in entries:
            if entry.get("use", "sig") != "sig" or entry.get("kty") == "oct":
                continue
            try:
                key = jwt.PyJWK(entry)
            except (jwt.PyJWTError, ValueError):
                continue
            if key.algorithm_name in ALGORITHMS:
                keys[key.key_id] = key
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigurationError('This is no set of keys such as {"keys": [...]} (JWKS).', field=FIELD) from None
    if not keys:
        raise ConfigurationError(f"There is no key for any of {', '.join(ALGORITHMS)}.", field=FIELD)
    return keys


def _fetched(url: str) -> bytes:
    shown = urlsplit(url)._replace(query="", fragment="").geturl()
    try:
        with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT) as response:  # noqa: S310 - the scheme was checked
            raw: bytes = response.read(LARGEST_SET + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        # The texts of the others may name the URL as a whole, which may have a secret in its query.
        why = error if isinstance(error, OSError) else type(error).__name__
        raise ConfigurationError(f"The keys cannot be fetched from {shown}: {why}.", field=FIELD) from None
    if len(raw) > LARGEST_SET:
        raise ConfigurationError(f"What {shown} answers has more than {LARGEST_SET} bytes.", field=FIELD)
    return raw
