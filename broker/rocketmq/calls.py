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
from broker.services.rights import CALLER
from broker.wire.credentials.authentication import address_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from broker.services.rights import Rights

ACCESS_KEY = "key:"
"""Before the names of those who sign with an access key."""
_AUTHORIZATION = re.compile(
    r"MQv2-HMAC-SHA1\s+Credential=(?P<key>[^,/\s]*)[^,]*,\s*SignedHeaders=x-mq-date-time,\s*Signature=(?P<sign>[0-9a-fA-F]+)"
)


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
        self, secrets: Mapping[str, str] | None = None, *, window: float = 0, rights: Rights | None = None
    ) -> None:
        """Takes the keys, the window and the rights.

        Args:
            secrets: the secret keys by access key; with none, nothing is checked.
            window: seconds that the time of a call may differ from this machine's; 0: any time is accepted, as by
                RocketMQ's own proxy.
            rights: what each access key may do; None: everything. Needs keys.
        """
        self._rights = rights
        self._secrets = {key: secret.encode() for key, secret in (secrets or {}).items()}
        self._window = window

    def caller(self, context: Any) -> Caller:
        """The client of a call.

        Raises:
            Unauthorized: keys are set, and the call is not signed with one of them.
            InvalidArgument: its client id is invalid.
        """
        headers = _headers_of(context)
        key = self._check(headers) if self._secrets else ""
        client_id = headers.get("x-mq-client-id", "")
        check_client_id(client_id, "x-mq-client-id")
        if self._rights is not None:
            principal = Principal(ACCESS_KEY + key, tenant=tenant_of(key), address=address_of(context.peer()))
            CALLER.set(CALLER.get().as_known(principal))
            # The same id of another principal is another client: what the one may be asked is nothing for the other.
            client_id = f"{key}/{client_id}" if client_id else ""
            check_client_id(client_id, "x-mq-client-id")
        return Caller(
            client_id, headers.get("x-mq-namespace", ""), context.time_remaining(), headers.get("x-mq-language", "")
        )

    def know(self, context: Any) -> bool:
        """Whether a call is signed as it must be, which takes no look at its request."""
        try:
            if self._secrets:
                self._check(_headers_of(context))
        except Unauthorized:
            return False
        return True

    def _check(self, headers: Mapping[str, str]) -> str:
        """The access key that a call is signed with."""
        found = _AUTHORIZATION.fullmatch(headers.get("authorization", "").strip())
        if found is None:
            raise Unauthorized("The call is not signed; set an access key and its secret key in the client.")
        secret = self._secrets.get(found["key"])
        signed = hmac.new(secret or b"-", headers.get("x-mq-date-time", "").encode(), hashlib.sha1).hexdigest()
        if not hmac.compare_digest(signed, found["sign"].lower()) or secret is None:
            raise Unauthorized("The access key is not known here, or the signature is not that of its secret key.")
        if self._window:
            self._check_time(headers.get("x-mq-date-time", ""))
        return str(found["key"])

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


def _headers_of(context: Any) -> dict[str, str]:
    return {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}


def read_secrets(file: Path) -> dict[str, str]:
    """Secret keys by access key, from a file with lines such as `key:secret`; those that begin with # are skipped.

    Raises:
        ConfigurationError: the file cannot be read, or a line is not of this form; secrets are not shown.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"The file {str(file)!r} cannot be read: {why}.", field="rocketmq_keys") from None
    secrets: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, colon, secret = text.partition(":")
        if not (key and colon and secret) or key in secrets or re.search(r"[,/\s]", key):
            raise ConfigurationError(
                f"Line {number} of {str(file)!r} must be access-key:secret-key, each access key once.",
                field="rocketmq_keys",
            )
        secrets[key] = secret
    if not secrets:
        raise ConfigurationError(f"The file {str(file)!r} has no keys.", field="rocketmq_keys")
    return secrets
