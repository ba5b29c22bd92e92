"""What the console refuses, and what its answers tell browsers."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from console.shop import Shop, Visitor
from producer_sdk import TransactionState

if TYPE_CHECKING:
    from console.shop import Answer


def decide(visitor: Visitor, own: str, token: str, **headers: str) -> Answer:
    body = f"form_token={token}&resolution=rollback&reason=forged"
    return visitor.ask("POST", f"/transactions/{own}/resolve", body, **headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_a_form_of_another_page_decides_nothing(shop: Shop, headers: dict[str, str]) -> None:
    visitor = shop.visitor()
    token = visitor.form_token()
    assert decide(visitor, shop.parked[0], token, **headers).status == 403
    assert shop.admin.get_transaction(shop.parked[0]).state is TransactionState.PARKED


@pytest.mark.parametrize("token", ["", "guessed", "x" * 43])
def test_a_form_without_the_browsers_secret_decides_nothing(shop: Shop, token: str) -> None:
    visitor = shop.visitor()
    visitor.get("/")
    assert decide(visitor, shop.parked[0], token).status == 403
    stranger = Visitor(visitor.host)
    assert decide(stranger, shop.parked[0], visitor.form_token()).status == 403
    assert shop.admin.get_transaction(shop.parked[0]).state is TransactionState.PARKED


MANY = {"state": "parked", "group": "shop", "resolution": "rollback"}


def test_many_are_decided_by_no_address(shop: Shop) -> None:
    # An address may be anybody's: also one that says all that a decision needs only counts.
    whole = {**MANY, "reason": "forged", "operator": "eve", "prepared_before": "2100-01-01T00:00:00Z"}
    answer = shop.visitor().get(f"/transactions/resolve?{urlencode(whole)}")
    assert answer.status == 200
    assert "Nothing was changed." in answer.text
    assert "forged" not in answer.text
    assert "2100" not in answer.text
    assert {shop.admin.get_transaction(own).state for own in shop.parked} == {TransactionState.PARKED}


@pytest.mark.parametrize("bound", [{}, {"prepared_before": ""}, {"prepared_before": "soon"}])
def test_many_are_decided_only_up_to_the_time_of_a_count(shop: Shop, bound: dict[str, str]) -> None:
    answer = shop.visitor().post("/transactions/resolve", reason="in a hurry", **MANY, **bound)
    assert (answer.status, "prepared_before" in answer.text) == (400, True)
    assert {shop.admin.get_transaction(own).state for own in shop.parked} == {TransactionState.PARKED}


@pytest.mark.parametrize("state", ["", "decided", "nothing"])
def test_many_are_decided_only_of_a_filter(shop: Shop, state: str) -> None:
    fields = {"state": state, "resolution": "rollback", "reason": "all", "prepared_before": ""}
    assert shop.visitor().post("/transactions/resolve", **fields).status == 400
    assert {shop.admin.get_transaction(own).state for own in shop.parked} == {TransactionState.PARKED}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/transactions/resolve", {**MANY, "reason": "forged", "prepared_before": "2100-01-01T00:00:00Z"}),
        ("/groups/billing/dead-letters/purge", {"before_offset": "2"}),
        ("/groups/billing/dead-letters/redrive", {}),
        ("/groups/billing/seek", {"topic": "orders", "to": "latest"}),
        ("/groups/billing/pause", {"reason": "forged"}),
    ],
)
def test_no_form_of_another_page_is_taken(shop: Shop, path: str, fields: dict[str, str]) -> None:
    visitor = shop.visitor()
    body = urlencode({"form_token": visitor.form_token(), **fields})
    assert visitor.ask("POST", path, body, Origin="https://evil.example").status == 403
    assert visitor.ask("POST", path, urlencode({**fields, "form_token": "x" * 43})).status == 403
    assert visitor.ask("POST", path, urlencode(fields)).status == 403
    assert {shop.admin.get_transaction(own).state for own in shop.parked} == {TransactionState.PARKED}
    assert shop.admin.get_group("billing").paused_at is None


def test_dead_letters_are_deleted_by_no_address_and_only_as_far_as_they_were_counted(shop: Shop) -> None:
    shop.bury("linked", 2)
    visitor = shop.visitor()
    answer = visitor.get(f"/groups/linked/dead-letters/purge?before_offset=2&form_token={visitor.form_token()}")
    assert "Nothing was changed." in answer.text
    for bound in ({}, {"before_offset": ""}, {"before_offset": "all"}):
        assert visitor.post("/groups/linked/dead-letters/purge", **bound).status == 400
    assert len(list(shop.admin.list_dead_letters("linked"))) == 2


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil"])
def test_without_access_other_names_of_this_machine_are_refused(shop: Shop, host: str) -> None:
    assert shop.visitor().get("/", Host=host).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1:1", "[::1]:8090", "localhost", "localhost:80", "console.localhost"])
def test_addresses_and_own_names_are_let_in(shop: Shop, host: str) -> None:
    assert shop.visitor().get("/sign-in", Host=host).status == 200


def test_large_forms_and_other_methods_are_refused(shop: Shop) -> None:
    visitor = shop.visitor()
    assert visitor.ask("POST", "/sign-in", "x" * 100_000).status == 403
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert visitor.ask(method, "/").status == 403
    assert visitor.ask("POST", "/").status == 405


def test_answers_tell_browsers_to_be_careful(shop: Shop) -> None:
    for path in ("/", "/nothing", "/topics/nothing", "/assets/console.css", "/figures"):
        headers = shop.visitor().get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers.get("cache-control") == (None if path.startswith("/assets") else "no-store")
        assert "server" not in headers


def test_cookies_are_not_for_scripts_nor_for_other_sites(shop: Shop) -> None:
    visitor = shop.visitor()
    visitor.get("/")
    (cookie,) = visitor.raw_cookies
    assert cookie.startswith("halfmq_form=")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


@pytest.mark.parametrize("path", ["/assets/../templates/base.html", "/assets/%2e%2e/app.py", "/assets//etc/passwd"])
def test_only_assets_are_files(shop: Shop, path: str) -> None:
    assert shop.visitor().get(path).status == 404


def test_names_of_others_are_told_to_be_refused_with_the_setting(shop: Shop) -> None:
    assert "console_hosts" in shop.visitor().get("/", Host="evil.example").text


def test_a_browser_that_leaves_in_the_middle_of_a_form_is_no_error(shop: Shop) -> None:
    host, _, port = shop.broker.console_endpoint.rpartition(":")
    with socket.create_connection((host, int(port))) as leaving:
        leaving.sendall(b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nform")
    assert shop.visitor().get("/").status == 200
    assert not shop.broker.count("[error")


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_that_a_proxy_may_read_otherwise_is_the_last_of_its_connection(shop: Shop, method: str) -> None:
    host, _, port = shop.broker.console_endpoint.rpartition(":")
    head = f"{method} /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    hidden = "0\r\n\r\nGET /topics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall((head + hidden).encode())
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    assert answer.startswith(b"HTTP/1.1 403")
    assert answer.count(b"HTTP/1.1") == 1


def test_what_was_done_is_said_once_and_links_say_nothing(shop: Shop) -> None:
    visitor = shop.visitor()
    answer = visitor.post("/groups/billing/pause", page="/groups/billing", reason="the books are closed")
    page = answer.headers["location"]
    assert page == "/groups/billing"
    assert "It is paused." in visitor.get(page).text
    assert "It is paused." not in visitor.get(page).text
    assert "your token" not in visitor.get(f"{page}?said=Enter+your+token").text
    assert visitor.post("/groups/billing/pause", page=page, action="resume").status == 303
