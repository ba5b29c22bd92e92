"""What every request and answer of the console goes through: hosts, sizes, headers, and forged requests."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from hmac import compare_digest
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_FORM = 64 * 1024
FORM_COOKIE, FORM_FIELD = "halfmq_form", "form_token"
"""A secret of the browser that its forms have to repeat: pages of others cannot read it."""

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """Refuses what is too large, or not from the console's own pages, and adds headers to answers."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], any_host: bool, encrypted: bool) -> None:
        """Takes the application behind it.

        Args:
            app: the application.
            hosts: names under which the console may be asked for, beside addresses and this machine's name.
            any_host: any name counts: only those who are known see anything. Otherwise a page of somebody else, whose
                name leads to this machine, could read the console through the browser of whoever looks at it.
            encrypted: whether it is served with TLS.
        """
        self._app = app
        self._any_host = any_host
        self._hosts = {"localhost", socket.gethostname().lower(), socket.getfqdn().lower(), *hosts}
        self._encrypted = encrypted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope["method"], headers)
        if refusal:
            # Nothing that follows on the connection counts: it may be the rest of what is refused.
            await PlainTextResponse(refusal, 403, {"connection": "close"})(scope, receive, self._adding(scope, send))
            return
        await self._app(scope, _bounded(receive), self._adding(scope, send))

    def _refusal(self, method: str, headers: Headers) -> str:
        if not self._any_host and not self._is_own(headers.get("host", "")):
            return (
                "The console is asked for under a name that it does not know. Without access it answers only to"
                " addresses and to this machine's name: use one of these, or set console_hosts.\n"
            )
        if "transfer-encoding" in headers:
            return (
                "A request says how many bytes it has: without Transfer-Encoding, which proxies may read otherwise.\n"
            )
        if method in {"GET", "HEAD"}:
            return ""
        length = headers.get("content-length", "")
        if method != "POST" or not (length.isascii() and length.isdigit()) or int(length) > LARGEST_FORM:
            return f"Only GET, and POST of a form with up to {LARGEST_FORM} bytes that says how many.\n"
        return "" if _is_from_here(headers) else "This did not come from a page of the console.\n"

    def _is_own(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        name = name.strip("[]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts or name.endswith(".localhost")
        return True

    def _adding(self, scope: Scope, send: Send) -> Send:
        path = scope["path"]

        async def adding(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if self._encrypted:
                    headers["strict-transport-security"] = "max-age=31536000"
                if not path.startswith("/assets/"):
                    headers["cache-control"] = "no-store"
            await send(message)

        return adding


def _is_from_here(headers: Headers) -> bool:
    """Whether a form came from a page of this console, as far as the browser says."""
    origin = headers.get("origin", "")
    if origin and origin.partition("://")[2] != headers.get("host", ""):
        return False
    return headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}


def _bounded(receive: Receive) -> Receive:
    """Ends a request whose content is larger than it says."""
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        message = await receive()
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            if taken > LARGEST_FORM:
                return {"type": "http.disconnect"}
        return message

    return bounded


def form_token(request: Request) -> tuple[str, bool]:
    """The secret that forms of a page repeat, and whether the browser has still to be given it."""
    known = request.cookies.get(FORM_COOKIE, "")
    return (known, False) if len(known) == 43 and known.isascii() else (secrets.token_urlsafe(32), True)


def is_own_form(request: Request, given: str) -> bool:
    """Whether a form came from a page of this console: it repeats the secret of the cookie."""
    known = request.cookies.get(FORM_COOKIE, "")
    return bool(known) and compare_digest(known.encode(), given.encode())
