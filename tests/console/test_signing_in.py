"""The console with access on, over TLS, and with several workers."""

from __future__ import annotations

import http.client
import ssl
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.wire.credentials.tokens import hash_of, new_token, with_token
from console.shop import PATIENCE, Visitor
from producer_sdk import Admin, AuditOutcome, BearerToken, Connection, TlsConfig
from support.brokers import BrokerProcess
from support.certificates import Authority
from support.command import halfmq, run
from support.databases import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.databases import Kind

NAMES = ("root", "ann")
_LISTENS = "0A"
"""A listening socket, in /proc/net/tcp."""


def wait_until_let_in(visitor: Visitor, token: str) -> None:
    """Signs in, once the broker has read the rules of access."""
    until = time.monotonic() + PATIENCE
    while (answer := visitor.post("/sign-in", page="/sign-in", token=token)).status != 303:
        assert time.monotonic() < until, answer.text
        time.sleep(0.1)


@dataclass
class Guarded:
    """A broker that knows root and ann, over TLS; ann may operate what is named `anns-…`."""

    folder: Path
    authority: Authority = field(default_factory=Authority.make)
    tokens: dict[str, str] = field(default_factory=lambda: {name: new_token() for name in NAMES})

    def __post_init__(self) -> None:
        content = b""
        for name, token in self.tokens.items():
            content = with_token(content, name, hash_of(token), roles=(), tenant="", replace=False)
        (self.folder / "tokens.toml").write_bytes(content)
        self.renew()
        database = f"sqlite:///{self.folder / 'halfmq.db'}"
        self.broker = BrokerProcess(
            database,
            access=True,
            access_tokens=self.folder / "tokens.toml",
            tls_certificate=self.folder / "chain.pem",
            tls_key=self.folder / "key.pem",
            console_listen="127.0.0.1:0",
        )
        halfmq("access", "grant", "user:root", "all", "*", "*", f"--database={database}")
        halfmq("access", "grant", "user:ann", "operate", "topic", "anns-*", f"--database={database}")
        wait_until_let_in(self.visitor(), self.tokens["root"])
        with self.admin() as admin:
            for topic in ("anns-orders", "others-secret"):
                admin.create_topic(topic)

    def renew(self) -> bytes:
        """Replaces the certificate; the new one."""
        key, chain = self.authority.issue("broker")
        (self.folder / "key.pem").write_bytes(key)
        (self.folder / "chain.pem").write_bytes(chain)
        return chain

    def admin(self) -> Admin:
        """Root's own calls."""
        tls = TlsConfig(self.authority.pem)
        return Admin(Connection(self.broker.endpoint, tls=tls, auth=BearerToken(self.tokens["root"])))

    def visitor(self) -> Visitor:
        """One who has not signed in."""
        endpoint = self.broker.console_endpoint if hasattr(self, "broker") else ""
        return Visitor(endpoint, tls=True)

    def signed_in(self, name: str) -> Visitor:
        """One who has."""
        visitor = self.visitor()
        assert visitor.post("/sign-in", page="/sign-in", token=self.tokens[name]).status == 303
        return visitor


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    with made.broker:
        yield made
    for token in made.tokens.values():
        assert token not in made.broker.log


def test_who_is_not_known_is_sent_to_sign_in_and_sees_nothing(guarded: Guarded) -> None:
    for path in (
        "/",
        "/topics",
        "/topics/anns-orders",
        "/messages?topic=anns-orders&queue=0",
        "/transactions/resolve?state=parked&resolution=check",
        "/groups/billing/dead-letters/purge",
        "/brokers",
        "/audit",
        "/figures",
    ):
        answer = guarded.visitor().get(path)
        assert (answer.status, answer.text) == (303, "")
        assert answer.headers["location"].startswith("/sign-in?to=%2F")


def test_a_token_signs_in_and_its_cookie_is_careful(guarded: Guarded) -> None:
    visitor = guarded.signed_in("root")
    (cookie,) = [each for each in visitor.raw_cookies if each.startswith("halfmq_token=")]
    assert {"HttpOnly", "Secure", "SameSite=strict"} <= set(cookie.replace("; ", ";").split(";"))
    answer = visitor.get("/topics")
    assert "others-secret" in answer.text
    assert guarded.tokens["root"] not in answer.text
    assert "max-age" in answer.headers["strict-transport-security"]


def test_wrong_tokens_are_refused(guarded: Guarded) -> None:
    for token in ("", "guessed", new_token(), "x" * 5_000, "\u00fcmlaut", guarded.tokens["root"][:-1]):
        visitor = guarded.visitor()
        assert visitor.post("/sign-in", page="/sign-in", token=token).status in {400, 403}
        assert "halfmq_token" not in visitor.cookies
        visitor.cookies["halfmq_token"] = token if token.isascii() else ""
        assert visitor.get("/topics").status == 303


def test_everyone_sees_what_they_may_see(guarded: Guarded) -> None:
    ann = guarded.signed_in("ann")
    shown = ann.get("/topics")
    assert shown.status == 200
    assert "anns-orders" in shown.text
    assert "others-secret" not in shown.text
    assert ann.get("/topics/anns-orders").status == 200
    assert ann.get("/messages?topic=anns-orders&queue=0&offset=0").status == 200
    assert ann.get("/messages?topic=others-secret&queue=0&offset=0").status in {403, 404}
    assert ann.get("/transactions/resolve?group=billing&resolution=commit").status in {403, 404}
    assert ann.get("/transactions/resolve?topic=others-secret&resolution=commit").status in {403, 404}
    refused = ann.get("/topics/others-secret")
    assert refused.status in {403, 404}
    assert ann.get("/audit").status == 403
    assert ann.post("/groups/billing/pause", page="/topics", reason="x").status in {403, 404}


def test_a_count_is_no_change_and_not_recorded_as_one_and_a_decision_is(guarded: Guarded) -> None:
    root = guarded.signed_in("root")
    view = "/transactions/resolve?group=nobody&resolution=rollback"

    def recorded() -> int:
        with guarded.admin() as admin:
            return len(list(admin.list_audit_records(call="AdminService/ResolveTransactions")))

    before = recorded()
    shown = root.get(view)
    assert (shown.status, "Nothing was changed." in shown.text) == (200, True)
    assert recorded() == before
    decision = {"group": "nobody", "resolution": "rollback", "reason": "it is closed", "prepared_before": "2026-01-01"}
    assert root.post("/transactions/resolve", page="/topics", **decision).status == 303
    assert recorded() == before + 1


def test_what_is_done_is_recorded_under_the_name_of_the_token(guarded: Guarded) -> None:
    root = guarded.signed_in("root")
    with guarded.admin() as admin:
        admin.create_group("billing")
        assert root.post("/groups/billing/pause", page="/topics", reason="the books are closed").status == 303
        assert admin.get_group("billing").pause_reason == "the books are closed"
        (record,) = list(admin.list_audit_records(call="AdminService/PauseGroup", outcome=AuditOutcome.ALLOWED))
        assert record.principal == "root"
        assert "127.0.0.1" in record.address


def test_signing_in_leads_only_to_pages_of_this_console(guarded: Guarded) -> None:
    for to, wanted in (
        ("/topics/%25DLQ%25billing", "/topics/%25DLQ%25billing"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\t/evil.example", "/%09/evil.example"),
        ("javascript:alert(1)", "/"),
        ("", "/"),
    ):
        visitor = guarded.visitor()
        body = f"/sign-in?to={to.replace('%', '%25').replace(chr(9), '%09')}".replace("\\", "%5C")
        answer = visitor.post(body, page="/sign-in", token=guarded.tokens["root"])
        assert (answer.status, answer.headers["location"]) == (303, wanted)
    # A page with a percent sign in a name is found again.
    sent = guarded.visitor().get("/topics/%25DLQ%25billing").headers["location"]
    answer = guarded.visitor().post(sent, page="/sign-in", token=guarded.tokens["root"])
    assert answer.headers["location"] == "/topics/%25DLQ%25billing"


def test_signing_in_leads_to_the_view_with_its_filters(guarded: Guarded) -> None:
    view = "/transactions?state=parked&group=shop+%26+co&older=1h"
    sent = guarded.visitor().get(view).headers["location"]
    answer = guarded.visitor().post(sent, page="/sign-in", token=guarded.tokens["root"])
    assert answer.headers["location"] == view


def test_signing_out_forgets_the_token(guarded: Guarded) -> None:
    visitor = guarded.signed_in("root")
    assert visitor.ask("POST", "/sign-out").status == 403
    assert visitor.post("/sign-out", page="/topics").headers["location"] == "/sign-in"
    assert visitor.cookies["halfmq_token"] == ""
    assert visitor.get("/topics").status == 303


def test_a_renewed_certificate_is_used_by_the_next_connection(guarded: Guarded) -> None:
    host, _, port = guarded.broker.console_endpoint.rpartition(":")
    for _ in range(2):
        chain = guarded.renew()
        shown = ssl.get_server_certificate((host, int(port)), timeout=PATIENCE)
        assert ssl.PEM_cert_to_DER_cert(shown) == ssl.PEM_cert_to_DER_cert(chain.decode())
    # Half replaced: the last pair that matched is used.
    key, _ = guarded.authority.issue("broker")
    (guarded.folder / "key.pem").write_bytes(key)
    assert guarded.visitor().get("/sign-in").status == 200
    guarded.renew()


@pytest.mark.parametrize("trusting", [False, True])
def test_without_tls_a_token_signs_in_only_where_that_is_allowed(tmp_path: Path, trusting: bool) -> None:
    token = new_token()
    content = with_token(b"", "root", hash_of(token), roles=(), tenant="", replace=False)
    (tmp_path / "tokens.toml").write_bytes(content)
    database = f"sqlite:///{tmp_path / 'halfmq.db'}"
    settings = {"access": True, "access_tokens": tmp_path / "tokens.toml", "access_without_tls": trusting}
    with BrokerProcess(database, console_listen="127.0.0.1:0", **settings) as broker:
        visitor = Visitor(broker.console_endpoint)
        answer = visitor.post("/sign-in", page="/sign-in", token=token)
        assert answer.status == (303 if trusting else 403)
        assert trusting or "access_without_tls" in answer.text
        # Names of others are no danger: only those who are known see anything.
        assert visitor.get("/sign-in", Host="halfmq.example").status == 200


@pytest.mark.parametrize("kind", KINDS)
def test_workers_share_the_consoles_port(kind: Kind, fresh_database: Callable[[Kind], str]) -> None:
    with BrokerProcess(fresh_database(kind), console_listen="127.0.0.1:0", workers=2) as broker:
        port = int(broker.console_endpoint.rpartition(":")[2])
        sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        assert sum(each[1].endswith(f":{port:04X}") and each[3] == _LISTENS for each in sockets) >= 2
        # A page of one of them, and its form sent to whichever takes it.
        visitor = Visitor(broker.console_endpoint)
        for _ in range(20):
            assert visitor.get("/").status == 200
            assert visitor.post("/groups/nobody/pause", reason="x").status == 404


def test_an_address_in_use_is_told(tmp_path: Path) -> None:
    with BrokerProcess(f"sqlite:///{tmp_path / 'halfmq.db'}", console_listen="127.0.0.1:0") as broker:
        done = run(
            "serve",
            f"--database=sqlite:///{tmp_path / 'other.db'}",
            "--listen=127.0.0.1:0",
            f"--console-listen={broker.console_endpoint}",
        )
    assert done.returncode != 0
    assert "console_listen" in done.stderr
    assert "Traceback" not in done.stderr


def test_where_certificates_alone_tell_who_may_connect_the_console_asks_for_them_too(tmp_path: Path) -> None:
    authority = Authority.make()
    key, chain = authority.issue("broker")
    files = {"key.pem": key, "chain.pem": chain, "ca.pem": authority.pem}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for name, signer in (("known", authority), ("strange", Authority.make("another authority"))):
        (tmp_path / name).write_bytes(b"".join(signer.issue(name)))
    with BrokerProcess(
        f"sqlite:///{tmp_path / 'halfmq.db'}",
        tls_certificate=tmp_path / "chain.pem",
        tls_key=tmp_path / "key.pem",
        tls_client_ca=tmp_path / "ca.pem",
        console_listen="127.0.0.1:0",
    ) as broker:
        for shown in (None, "strange"):
            with pytest.raises((ssl.SSLError, OSError)):
                _status(broker.console_endpoint, tmp_path / shown if shown else None)
        assert _status(broker.console_endpoint, tmp_path / "known") == 200


def _status(host: str, certificate: Path | None) -> int:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate)
    with closing(http.client.HTTPSConnection(host, timeout=PATIENCE, context=context)) as connection:
        connection.request("GET", "/topics")
        return connection.getresponse().status
