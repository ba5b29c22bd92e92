"""Callers: the headers of every call."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from broker.domain.access import Principal
from broker.domain.limits import check_client_id
from broker.domain.tenancy import tenant_of
from broker.errors import ConfigurationError
from broker.rocketmq.codes import BadRequest, Unauthorized
from broker.rocketmq.protocol import Code
from broker.services.rights import CALLER, CLIENT_ID
from broker.wire.credentials.authentication import address_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.services.rights import Rights
    from broker.wire.credentials.files import WatchedFile

ACCESS_KEY = "key:"
"""Before the names of those who sign with an access key."""
Secrets = dict[str, tuple[bytes, ...]]
"""Secret keys by access key."""
FIELD = "rocketmq_keys"
MOST_SECRETS = 4
"""Secret keys of one access key; several, while one is being replaced."""
# No part gives back what it took: the time to refuse a text grows with its length only.
_AUTHORIZATION = re.compile(
    r"MQv2-HMAC-SHA1 ++Credential=(?P<key>[^,/\s]++)(?:/[^,]*+)?+, *+SignedHeaders=x-mq-date-time, *+"
    r"Signature=(?P<sign>[0-9a-fA-F]{40})"
)
_UNAUTHORIZED = "The call is not signed by an access key that is known here, with the secret key of that one."


@dataclass(frozen=True, slots=True)
class Caller:
    """A client; it chooses its id, which is the same in all of its calls."""

    client_id: str
    namespace: str = ""
    seconds_left: float | None = None
    language: str = ""

    def named(self) -> Caller:
        """The caller, for calls that require a client id.

        Raises:
            BadRequest: it has none.
        """
        if not self.client_id:
            raise BadRequest("The header x-mq-client-id is missing.", Code.CLIENT_ID_REQUIRED, "x-mq-client-id")
        return self


class Callers:
    """Identifies callers, and refuses those with a wrong signature, if keys are set.

    Only the time of the call is signed: as in RocketMQ, a party that has seen the headers of one call can make others
    with them, as long as that time is accepted.
    """

    def __init__(
        self,
        secrets: WatchedFile[Secrets] | None = None,
        *,
        window: float = 0,
        rights: Rights | None = None,
    ) -> None:
        """Takes the keys, the window and the rights.

        Args:
            secrets: the secret keys by access key; None: nothing is checked.
            window: seconds that the time of a call may differ from this machine's; 0: any time is accepted, as by
                RocketMQ's own proxy.
            rights: what each access key may do; None: everything. Needs keys.
        """
        self._rights = rights
        self._secrets = secrets
        self._window = window

    def caller(self, context: Any) -> Caller:
        """The client of a call.

        Raises:
            Unauthorized: keys are set, and the call is not signed with one of them.
            InvalidArgument: its client id is invalid.
        """
        headers = _headers_of(context)
        try:
            key = self._check(headers)
        except Unauthorized:
            CALLER.get().not_known()
            raise
        client_id = headers.get("x-mq-client-id", "")
        check_client_id(client_id, "x-mq-client-id")
        if self._rights is not None:
            principal = Principal(ACCESS_KEY + key, tenant=tenant_of(key), address=address_of(context.peer()))
            CALLER.set(CALLER.get().as_known(principal))
            # The same id of another principal is another client: what the one may be asked is nothing for the other.
            client_id = f"{key}/{client_id}" if client_id else ""
            check_client_id(client_id, "x-mq-client-id")
        CLIENT_ID.set(client_id)
        return Caller(
            client_id, headers.get("x-mq-namespace", ""), context.time_remaining(), headers.get("x-mq-language", "")
        )

    def know(self, context: Any) -> bool:
        """Whether a call is signed as it must be, which takes no look at its request."""
        try:
            self._check(_headers_of(context))
        except Unauthorized:
            return False
        return True

    def look_again(self, context: Any) -> None:
        """Finds out whether the signature of a call that lasts still counts, whose time may have passed.

        Raises:
            Unauthorized: the key that it was signed with is not known any more.
        """
        self._signer(_headers_of(context))

    def _check(self, headers: Mapping[str, str]) -> str:
        """The access key that a call is signed with, at an acceptable time; empty if none is needed."""
        key = self._signer(headers)
        if self._secrets is not None and self._window:
            self._check_time(headers.get("x-mq-date-time", ""))
        return key

    def _signer(self, headers: Mapping[str, str]) -> str:
        """The access key that a call is signed with, at whatever time; empty if none is needed."""
        if self._secrets is None:
            return ""
        found = _AUTHORIZATION.fullmatch(headers.get("authorization", "").strip(" "))
        if found is None:
            raise Unauthorized(_UNAUTHORIZED)
        key, sign, date_time = found["key"], found["sign"].lower(), headers.get("x-mq-date-time", "").encode()
        secrets = self._secrets.content()
        if not _is_signed(date_time, sign, secrets.get(key)):
            # The secret may have been added a moment ago.
            added = self._secrets.content(anew=True)
            if added is secrets or not _is_signed(date_time, sign, added.get(key)):
                raise Unauthorized(_UNAUTHORIZED)
        return str(key)

    def _check_time(self, text: str) -> None:
        try:
            # Also with a time zone and fractions, as the client for Node writes it.
            signed_at = datetime.fromisoformat(text)
        except ValueError:
            raise Unauthorized("The time in x-mq-date-time must look like 20260131T235959Z.") from None
        if signed_at.tzinfo is None:
            signed_at = signed_at.replace(tzinfo=UTC)
        apart = abs((datetime.now(UTC) - signed_at).total_seconds())
        if apart > self._window:
            raise Unauthorized(
                f"The call was signed {apart:.0f} s before or after this machine's time, and {self._window:g} s are "
                "allowed. Clients tell the time of their own time zone: it has to be UTC."
            )


def _is_signed(content: bytes, sign: str, secrets: Sequence[bytes] | None) -> bool:
    """Whether something is signed by one of these secrets; it takes as long where there are none."""
    signs = [hmac.new(secret, content, hashlib.sha1).hexdigest() for secret in secrets or (b"-",)]
    return any(hmac.compare_digest(each, sign) for each in signs) and secrets is not None


def _headers_of(context: Any) -> dict[str, str]:
    """Of one that is shown twice, a proxy in between may have looked at the other value: it is as good as empty."""
    found: dict[str, str] = {}
    for name, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            found[name] = "" if name in found else value
    return found


def read_secrets(raw: bytes) -> Secrets:
    """Secret keys by access key, from lines such as `key:secret`; those that begin with # are skipped.

    An access key may be on several lines: each of its secrets counts.

    Raises:
        ConfigurationError: a line is not of this form; secrets are not shown.
    """
    try:
        lines = raw.decode().splitlines()
    except UnicodeDecodeError:
        raise ConfigurationError("The file of keys is not UTF-8.", field=FIELD) from None
    secrets: Secrets = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, colon, secret = text.partition(":")
        if not (key and colon and secret) or re.search(r"[,/\s]", key):
            raise _wrong(number, "it must be access-key:secret-key")
        known = secrets.get(key, ())
        if secret.encode() in known:
            raise _wrong(number, "this secret key of this access key is there already")
        if len(known) == MOST_SECRETS:
            raise _wrong(number, f"an access key has up to {MOST_SECRETS} secret keys; remove those that are replaced")
        secrets[key] = (*known, secret.encode())
    if not secrets:
        raise ConfigurationError("The file of keys has none.", field=FIELD)
    return secrets


def _wrong(line: int, why: str) -> ConfigurationError:
    return ConfigurationError(f"Line {line} of the file of keys: {why}.", field=FIELD)
