"""Signing in with a token, and out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.console.visit import SIGNED_IN_FOR, TOKEN_COOKIE, own_path
from broker.errors import Unauthenticated

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.console.visit import Visit

PAUSE = 1.0
"""Seconds that a refusal takes."""
LONGEST_TOKEN = 3_500
"""Characters of a token that fits into a cookie."""


async def sign_in_form(visit: Visit) -> Response:
    """The form."""
    return await _form(visit, "")


async def sign_in(visit: Visit) -> Response:
    """Signs in."""
    fields = await visit.form()
    token = str(fields.get("token", "")).strip()
    if len(token) > LONGEST_TOKEN or not token.isascii():
        return await _form(visit, f"A token has up to {LONGEST_TOKEN} characters.", 400)
    try:
        await visit.calls.enter("AdminService/ListTopics", replace(visit.visitor, token=token))
    except Unauthenticated:
        await asyncio.sleep(PAUSE)
        where = "" if visit.encrypted else " Without TLS tokens are refused unless access_without_tls is set."
        return await _form(visit, f"This token is not accepted.{where}", 403)
    response = visit.redirect(own_path(visit.query("to")))
    response.set_cookie(
        TOKEN_COOKIE, token, max_age=SIGNED_IN_FOR, httponly=True, samesite="strict", secure=visit.encrypted
    )
    return response


async def sign_out(visit: Visit) -> Response:
    """Signs out."""
    await visit.form()
    response = visit.redirect("/sign-in")
    response.delete_cookie(TOKEN_COOKIE, httponly=True, samesite="strict", secure=visit.encrypted)
    return response


async def _form(visit: Visit, refusal: str, status: int = 200) -> Response:
    return await visit.page("sign_in.html", status, title="Sign in", refusal=refusal, to=visit.query("to"))
