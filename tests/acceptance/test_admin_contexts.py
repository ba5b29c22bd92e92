"""`halfmq admin context` and `access`: brokers that know their clients, by TLS and tokens from a file of contexts."""

from __future__ import annotations

import stat
import time
from typing import TYPE_CHECKING

import pytest

from broker.wire.credentials.tokens import hash_of, new_token, with_token
from support.admin_command import AdminCommand
from support.brokers import BrokerProcess
from support.certificates import Authority
from support.command import halfmq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Locked:
    """A broker with TLS and access, and commands without any setting of the environment."""

    def __init__(self, broker: BrokerProcess, folder: Path, tokens: dict[str, str]) -> None:
        self.broker = broker
        self.folder = folder
        self.tokens = tokens
        self.admin = AdminCommand("", folder)

    def context(self, name: str, *options: object) -> None:
        self.admin.done(
            "context", "set", name, "--endpoint", self.broker.endpoint, "--tls-ca", self.folder / "ca.pem", *options
        )


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    authority = Authority.make()
    key, chain = authority.issue("broker")
    for name, content in (("ca.pem", authority.pem), ("key.pem", key), ("chain.pem", chain)):
        (folder / name).write_bytes(content)
    tokens = {name: new_token() for name in ("root", "anna")}
    content = b""
    for name, token in tokens.items():
        content = with_token(content, name, hash_of(token), roles=(), tenant="", replace=False)
        file = folder / f"{name}.token"
        file.touch(mode=0o600)
        file.write_text(f"{token}\n")
    (folder / "tokens.toml").write_bytes(content)
    settings = {
        "access": True,
        "access_tokens": folder / "tokens.toml",
        "tls_certificate": folder / "chain.pem",
        "tls_key": folder / "key.pem",
        "admin_listen": "127.0.0.1:0",
    }
    with BrokerProcess(f"sqlite:///{folder / 'try.db'}", **settings) as broker:
        halfmq("access", "grant", "user:root", "all", "*", "*", f"--database={broker.database}")
        made = Locked(broker, folder, tokens)
        made.context(
            "root",
            "--token-file",
            folder / "root.token",
            "--admin-endpoint",
            broker.admin_endpoint,
            "--operator",
            "root@desk",
        )
        until = time.monotonic() + 30
        # Lists need no rule; this does, and brokers read rules once a second.
        while made.admin("topic", "create", "orders", "--context", "root").status:
            assert time.monotonic() < until
            time.sleep(0.1)
        yield made


@pytest.fixture
def fresh(locked: Locked, tmp_path: Path) -> AdminCommand:
    """A command whose file of contexts is not there yet."""
    return AdminCommand("", tmp_path)


def test_a_context_holds_what_is_needed_to_reach_a_locked_broker(locked: Locked) -> None:
    admin = locked.admin
    admin("topic", "list", "--endpoint", locked.broker.admin_endpoint, "--timeout", 2).refused(
        3, "no broker answered in time", "a broker with TLS needs --tls or --tls-ca"
    )
    admin("topic", "list", "--endpoint", locked.broker.admin_endpoint, "--tls", "--timeout", 2).refused(
        3, "--tls-ca names the authority"
    )
    shown = ("--endpoint", locked.broker.admin_endpoint, "--token-file", locked.folder / "anna.token")
    admin("topic", "list", *shown).refused(2, "token: it goes over TLS only", "--tls-ca", "--token-without-tls")
    admin("topic", "list", "--endpoint", locked.broker.admin_endpoint, "--tls-ca", locked.folder / "ca.pem").refused(
        1, "UNAUTHENTICATED", "--token-file"
    )
    # The first context is used from the beginning on. Its two addresses are for operators' calls and for all others.
    admin.done("topic", "update", "orders", "--retention", "1d")
    transaction = admin.done("message", "send", "orders", "--body", "x", "--half", "shop").output.partition(":")[0]
    assert "half messages (1)" in admin.done("tx", "show", transaction).output
    admin.done("tx", "commit", transaction, "--reason", "a test", "--yes")
    (found,) = admin.found("message", "find", "orders")
    assert found["message_id"] == transaction


def test_rights_are_granted_used_recorded_and_revoked(locked: Locked) -> None:
    admin = locked.admin
    locked.context(
        "anna", "--token-file", locked.folder / "anna.token", "--admin-endpoint", locked.broker.admin_endpoint
    )
    admin("group", "create", "g-anna", "--context", "anna").refused(1, "PERMISSION_DENIED")
    (rule,) = admin.found(
        "access", "grant", "user:anna", "operate,administer", "group", "g-*", "--source", "127.0.0.0/8"
    )
    assert (rule["subject"], rule["kind"], rule["pattern"], rule["made_by"]) == ("user:anna", "group", "g-*", "root")
    admin.done("group", "create", "g-anna", "--context", "anna")
    overview = admin.done("status", "--context", "anna").output
    assert "dead letters" in overview
    shown = admin.done("access", "rules").output
    assert "user:anna" in shown
    assert "127.0.0.0/8" in shown
    admin("access", "revoke", rule["rule_id"]).refused(2, "remove rule", "--yes")
    admin.done("access", "revoke", rule["rule_id"], "--yes")
    again = admin("access", "revoke", rule["rule_id"], "--yes")
    assert again.status == 1
    assert "`halfmq admin access rules`" in again.errors
    # Refusals are recorded a moment later.
    until = time.monotonic() + 30
    outcomes: set[str] = set()
    while outcomes != {"DENIED", "ALLOWED"}:
        assert time.monotonic() < until, outcomes
        outcomes = {each["outcome"] for each in admin.found("access", "audit", "--principal", "anna", "--oldest-first")}
    assert "AdminService/CreateGroup" in admin.done("access", "audit", "--since", "1h").output
    assert all(record["outcome"] == "DENIED" for record in admin.found("access", "audit", "--outcome", "denied"))


def test_quotas_are_set_as_a_whole_and_removed(locked: Locked) -> None:
    admin = locked.admin
    admin.done("access", "quota", "acme", "--topics", 20, "--messages-per-second", 1000)
    (quota,) = admin.found("access", "quotas")
    assert (quota["tenant"], quota["topics"], quota["messages_per_second"]) == ("acme", 20, 1000)
    admin("access", "quota", "acme").refused(2, "--remove")
    admin.done("access", "quota", "acme", "--remove")
    assert admin.found("access", "quotas") == []


def test_tokens_are_masked_and_only_their_owner_reads_the_file(
    locked: Locked, fresh: AdminCommand, tmp_path: Path
) -> None:
    token = locked.tokens["root"]
    fresh.done(
        "context",
        "set",
        "desk",
        "--endpoint",
        locked.broker.admin_endpoint,
        "--tls-ca",
        locked.folder / "ca.pem",
        "--token",
        given=f"{token}\n",
    )
    file = tmp_path / "contexts.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    fresh.done("topic", "list")
    for command in (("list",), ("show",), ("list", "--json"), ("show", "desk", "--json")):
        shown = fresh.done("context", *command)
        assert "********" in shown.output
        assert token not in shown.output + shown.errors
    file.chmod(0o640)
    fresh("topic", "list").refused(2, "chmod 600")


def test_a_token_may_be_in_a_variable_or_come_from_the_environment(locked: Locked, tmp_path: Path) -> None:
    token = locked.tokens["root"]
    named = AdminCommand("", tmp_path, SHOP_TOKEN=token)
    named.done(
        "context",
        "set",
        "desk",
        "--endpoint",
        locked.broker.admin_endpoint,
        "--tls-ca",
        locked.folder / "ca.pem",
        "--token-variable",
        "SHOP_TOKEN",
    )
    named.done("topic", "list")
    AdminCommand("", tmp_path, SHOP_TOKEN="")("topic", "list").refused(2, "SHOP_TOKEN")
    environment = AdminCommand(
        locked.broker.admin_endpoint, tmp_path, HALFMQ_TOKEN=token, HALFMQ_TLS_CA=str(locked.folder / "ca.pem")
    )
    environment.done("topic", "list")
    without_tls = AdminCommand(locked.broker.admin_endpoint, tmp_path / "none", HALFMQ_TOKEN=token)
    without_tls("topic", "list").refused(2, "TLS")


def test_options_count_more_than_the_environment_and_that_more_than_a_context(locked: Locked, tmp_path: Path) -> None:
    nowhere = "127.0.0.1:1"
    admin = AdminCommand(nowhere, locked.folder, HALFMQ_CONTEXT="root")
    assert admin("topic", "list", "--timeout", 1).status == 0, "the context has another address for operators"
    assert admin("message", "find", "orders", "--timeout", 1).status == 3
    assert admin("message", "find", "orders", "--endpoint", locked.broker.endpoint).status == 0
    # An option that names a context is more than the environment.
    assert admin("message", "find", "orders", "--context", "root").status == 0
    # The context that is used is not mixed with an address from elsewhere: its token is for its own brokers.
    elsewhere = AdminCommand(locked.broker.admin_endpoint, locked.folder)
    elsewhere("topic", "list", "--tls-ca", locked.folder / "ca.pem").refused(1, "UNAUTHENTICATED")


def test_contexts_are_chosen_changed_and_deleted(fresh: AdminCommand, tmp_path: Path) -> None:
    assert "there are no contexts" in fresh.done("context", "list").errors
    fresh.done("context", "set", "one", "--endpoint", "a:1,b:1")
    fresh.done("context", "set", "other", "--endpoint", "c:1", "--tls")
    listed = fresh.found("context", "list")
    assert [(each["name"], each["current"], each["endpoint"]) for each in listed] == [
        ("one", True, "a:1,b:1"),
        ("other", False, "c:1"),
    ]
    fresh.done("context", "use", "other")
    assert fresh.done("context", "show").lines[0] == "context other"
    fresh.done("context", "set", "other", "--endpoint", "d:1", "--no-tls")
    assert fresh.found("context", "show")[0]["endpoint"] == "d:1"
    fresh("context", "use", "third").refused(2, "third", "one, other")
    fresh("context", "set", "bad name").refused(2, "name")
    fresh("context", "set", "third", "--endpoint", "no port").refused(2, "endpoint")
    fresh("context", "delete", "other").refused(2, "--yes")
    fresh.done("context", "delete", "other", "--yes")
    assert [each["name"] for each in fresh.found("context", "list")] == ["one"]
    fresh("topic", "list", "--context", "other").refused(2, "other")
    (tmp_path / "contexts.toml").write_text('[contexts.one]\nendpont = "a:1"\n')
    fresh("topic", "list", "--context", "one").refused(2, "endpont", "endpoint, admin_endpoint")
