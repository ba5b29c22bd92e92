"""A visit of a page: who asks, what for, and the answer."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode

from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, RedirectResponse, Response

from broker.console.calls import Visitor
from broker.console.guarding import FORM_COOKIE, FORM_FIELD, form_token, is_own_form
from broker.console.rendering import templates
from broker.errors import (
    BrokerError,
    Denied,
    InvalidArgument,
    NotFound,
    Overloaded,
    StorageUnavailable,
    Unauthenticated,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.datastructures import FormData
    from starlette.requests import Request

    from broker.console.calls import Calls

TOKEN_COOKIE = "halfmq_token"  # noqa: S105 - a name
SAID_COOKIE = "halfmq_said"
SAID_FOR = 30
"""Seconds until what was done is not said any more."""
SIGNED_IN_FOR = 12 * 3600
"""Seconds for which a browser keeps the token."""
PAGE = 50
"""Entries of a page."""
_RENDERING = ThreadPoolExecutor(2, thread_name_prefix="halfmq-console")
"""Threads of its own: many pages at once do not keep anything else in the broker waiting for a thread."""
_STATUS = (
    (Denied, 403),
    (NotFound, 404),
    (InvalidArgument, 400),
    (Overloaded, 429),
    (StorageUnavailable, 503),
)


@dataclass(slots=True)
class Visit:
    """One request of a browser.

    Attributes:
        request: the request.
        calls: the broker's own services.
        encrypted: whether it came by TLS.
        kept: what is given back once it is answered.
    """

    request: Request
    calls: Calls
    encrypted: bool
    kept: ExitStack

    @property
    def visitor(self) -> Visitor:
        """Who asks."""
        client = self.request.client
        host, port = (client.host, client.port) if client is not None else ("", 0)
        peer = f"ipv6:%5B{quote(host)}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
        return Visitor(peer, self.request.cookies.get(TOKEN_COOKIE, ""), self.encrypted)

    async def call(self, method: str, request: Any) -> Any:
        """Makes a call for whoever asks."""
        return await self.calls.call(method, request, self.visitor, self.kept)

    def stream(self, method: str, request: Any) -> AsyncIterator[Any]:
        """Makes a call that answers with a stream."""
        return self.calls.stream(method, request, self.visitor)

    def query(self, name: str) -> str:
        """A parameter of the address; empty if it is not there."""
        return str(self.request.query_params.get(name, "")).strip()

    @property
    def said(self) -> str:
        """What the form that led here has done; empty if none did."""
        return unquote(self.request.cookies.get(SAID_COOKIE, ""))

    def path(self, name: str) -> str:
        """A part of the address."""
        return str(self.request.path_params[name])

    async def form(self) -> FormData:
        """The fields of a form of this console.

        Raises:
            Denied: it is no form of a page of this console.
        """
        fields = await self.request.form(max_files=0, max_fields=100)
        if not is_own_form(self.request, str(fields.get(FORM_FIELD, ""))):
            raise Denied
        return fields

    def next_page(self, token: str) -> str:
        """The address of the next page of a list; empty at the end."""
        if not token:
            return ""
        kept = {name: value for name, value in self.request.query_params.items() if name != "page_token"}
        return f"{self.request.url.path}?{urlencode({**kept, 'page_token': token})}"

    async def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Renders a page. In a thread: it may be long, and the broker has other things to do."""
        token, is_new = form_token(self.request)
        shown = {
            "path": self.request.url.path,
            "query": self.request.query_params,
            "form_token": token,
            "form_field": FORM_FIELD,
            "guarded": self.calls.guarded,
            "signed_in": bool(self.request.cookies.get(TOKEN_COOKIE)),
            **values,
        }
        render = templates().get_template(template).render
        text = await asyncio.get_running_loop().run_in_executor(_RENDERING, render, shown)
        response = HTMLResponse(text, status)
        if SAID_COOKIE in self.request.cookies:
            response.delete_cookie(SAID_COOKIE, httponly=True, samesite="strict", secure=self.encrypted)
        if is_new:
            response.set_cookie(
                FORM_COOKIE, token, httponly=True, samesite="strict", secure=self.encrypted, max_age=SIGNED_IN_FOR
            )
        return response

    def redirect(self, path: str, *, said: str = "", **parameters: str) -> Response:
        """Sends the browser to another page, whose path is quoted, and which says what was done."""
        query = urlencode({name: value for name, value in parameters.items() if value})
        response = RedirectResponse(f"{path}?{query}" if query else path, 303)
        if said:
            # Not in the address: whoever makes a link would have the console say what they like.
            response.set_cookie(
                SAID_COOKIE, quote(said), httponly=True, samesite="strict", secure=self.encrypted, max_age=SAID_FOR
            )
        return response


def endpoint(
    calls: Calls, page: Callable[[Visit], Awaitable[Response]], *, encrypted: bool
) -> Callable[[Request], Awaitable[Response]]:
    """A page as Starlette serves it; what is refused becomes a page that says why."""

    async def serve(request: Request) -> Response:
        with ExitStack() as kept:
            visit = Visit(request, calls, encrypted, kept)
            try:
                return await page(visit)
            except Unauthenticated:
                wanted = address_of(request) if request.method == "GET" else "/"
                return visit.redirect("/sign-in", to=wanted)
            except BrokerError as error:
                status = next((code for kind, code in _STATUS if isinstance(error, kind)), 409)
                return await visit.page("error.html", status, error=error, title="Refused")
            except ClientDisconnect:
                # Nobody reads it.
                return Response(status_code=400)

    return serve


async def no_page(visit: Visit) -> Response:
    """What an address shows that no page has.

    Raises:
        NotFound: always.
    """
    raise NotFound(f"There is no page {visit.request.scope['path'][:200]!r}: correct the address.", reason="")


def address_of(request: Request) -> str:
    """The address of a page with its filters."""
    path = quote(request.scope["path"])
    filters = urlencode(request.query_params.multi_items())
    return f"{path}?{filters}" if filters else path


def own_path(text: str) -> str:
    """A path of this console that a browser may be sent to; `/` for anything else."""
    return text if text.startswith("/") and not text.startswith(("//", "/\\")) and text.isascii() else "/"
