"""The console as an application: every page and its address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from broker.console.guarding import Guard
from broker.console.pages import (
    cluster,
    dead_letters,
    deciding,
    groups,
    messages,
    overview,
    signing_in,
    topics,
    transactions,
)
from broker.console.rendering import FOLDER
from broker.console.visit import endpoint, no_page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.responses import Response

    from broker.console.calls import Calls
    from broker.console.visit import Visit

    _Page = Callable[[Visit], Awaitable[Response]]

PAGES: tuple[tuple[str, str, _Page], ...] = (
    ("GET", "/", overview.overview),
    ("GET", "/figures", overview.figures),
    ("GET", "/transactions", transactions.transactions),
    ("GET", "/transactions/resolve", deciding.count_many),
    ("POST", "/transactions/resolve", deciding.resolve_many),
    ("GET", "/transactions/{transaction_id}", transactions.transaction),
    ("POST", "/transactions/{transaction_id}/resolve", deciding.resolve),
    ("GET", "/topics", topics.topics),
    ("GET", "/topics/{name}", topics.topic),
    ("GET", "/groups", groups.groups),
    ("GET", "/groups/{name}", groups.group),
    ("POST", "/groups/{name}/pause", groups.pause),
    ("POST", "/groups/{name}/seek", groups.seek),
    ("GET", "/groups/{name}/dead-letters", dead_letters.dead_letters),
    ("POST", "/groups/{name}/dead-letters/redrive", dead_letters.redrive),
    ("GET", "/groups/{name}/dead-letters/purge", dead_letters.count),
    ("POST", "/groups/{name}/dead-letters/purge", dead_letters.purge),
    ("GET", "/messages", messages.messages),
    ("GET", "/messages/{message_id}", messages.message),
    ("GET", "/brokers", cluster.brokers),
    ("GET", "/clients", cluster.clients),
    ("GET", "/audit", cluster.audit),
    ("GET", "/sign-in", signing_in.sign_in_form),
    ("POST", "/sign-in", signing_in.sign_in),
    ("POST", "/sign-out", signing_in.sign_out),
)
"""Method, address, and what serves it."""


def console(calls: Calls, *, hosts: Iterable[str] = (), encrypted: bool = False) -> Guard:
    """The application.

    Args:
        calls: the broker's own services.
        hosts: further names under which the console is asked for.
        encrypted: whether it is served with TLS.
    """
    routes = [Route(path, endpoint(calls, page, encrypted=encrypted), methods=[method]) for method, path, page in PAGES]
    assets = Mount("/assets", StaticFiles(directory=FOLDER / "assets"))
    others = Route("/{address:path}", endpoint(calls, no_page, encrypted=encrypted), methods=["GET"])
    app = Starlette(routes=[*routes, assets, others])
    # Such a redirect would lead to the host and the scheme of the request, which may be a proxy's.
    app.router.redirect_slashes = False
    return Guard(app, hosts=hosts, any_host=calls.guarded, encrypted=encrypted)
