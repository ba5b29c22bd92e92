"""Secrets that can be recognised are planted wherever there are any, and nothing that is written afterwards has one.

Searched are logs at the level debug, what commands write, what clients are told, arguments of processes, everything in
the database, and files beside those that have to hold them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import socket
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from acceptance.client import PATIENCE, message
from broker.app import Broker
from broker.config import BrokerConfig
from broker.rocketmq.protocol import Code, service_pb2
from broker.wire.credentials.tokens import hash_of
from client_core.errors import HalfmqError
from consumer_sdk import Consumer
from halfmq.v1 import producer_pb2, producer_pb2_grpc
from producer_sdk import Admin, BearerToken, Connection, Producer, RetryConfig, TlsConfig, TokenFile
from support import command
from support.brokers import BrokerProcess
from support.certificates import Authority
from support.databases import connect, create_database, drop_database, server_url
from support.forking import ForkedCommand
from support.rocketmq_protocol import RawClient, resource, signature

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.databases import Kind

AUDIENCE = "halfmq"


class Planted:
    """The secrets, and what was written.

    Attributes:
        written: by where it was found.
    """

    def __init__(self) -> None:
        self._secrets: dict[str, str] = {}
        self.written: dict[str, str] = {}

    def plant(self, name: str, secret: str = "") -> str:
        """A secret by a name; without one, a new one."""
        made = secret or f"planted-{name.replace(' ', '-')}-{uuid.uuid4().hex}"
        self._secrets[name] = made
        return made

    def keep(self, where: str, *texts: object) -> None:
        """Keeps something that was written."""
        self.written[where] = self.written.get(where, "") + "\n".join(map(str, texts))

    @property
    def found(self) -> list[str]:
        """Which secrets are where, in any case, and also encoded."""
        forms = {
            name: {form.lower() for form in (secret, quote(secret, safe=""), _base64(secret), repr(secret)[1:-1])}
            for name, secret in self._secrets.items()
        }
        return [
            f"{name} in {where}"
            for where, text in self.written.items()
            for name, several in forms.items()
            if any(form in text.lower() for form in several)
        ]


def _base64(secret: str) -> str:
    # Without its end, which depends on what stands behind it.
    return base64.b64encode(secret.encode()).decode()[: len(secret) * 4 // 3 - 2]


def line_of(pem: bytes) -> str:
    """A line in the middle of a key in PEM form."""
    return pem.decode().splitlines()[1]


@dataclass
class Site:
    """Files with secrets in one folder, and another one that brokers run in, where they have no business to write."""

    planted: Planted
    secrets: Path
    work: Path
    database: str
    user: str
    password: str
    authority: Authority
    issuer: ec.EllipticCurvePrivateKey
    token: str
    variables: dict[str, str] = field(default_factory=dict)

    def url(self, password: str, *, server: str = "") -> str:
        """The database's URL."""
        parts = urlsplit(self.database)
        where = server or f"{parts.hostname}:{parts.port}"
        return f"mysql://{self.user}:{quote(password, safe='')}@{where}{parts.path}"

    def put(self, name: str, content: str | bytes) -> Path:
        file = self.secrets / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        file.chmod(0o600)
        return file

    def web_token(self, name: str, key: ec.EllipticCurvePrivateKey | None = None, seconds: float = 3600) -> str:
        """A JWT, whose last part is planted."""
        claims = {"sub": "web", "aud": AUDIENCE, "exp": time.time() + seconds}
        made = jwt.encode(claims, key or self.issuer, "ES256", headers={"kid": "one"})
        self.planted.plant(name, made.rpartition(".")[2])
        return made

    def settings(self, **more: object) -> dict[str, object]:
        return {
            "folder": self.work,
            "access": True,
            "access_certificates": True,
            "access_tokens": self.secrets / "tokens.toml",
            "jwt_keys": self.secrets / "jwks.json",
            "jwt_audience": AUDIENCE,
            "tls_certificate": self.secrets / "chain.pem",
            "tls_key": self.secrets / "key.pem",
            "tls_client_ca": self.secrets / "ca.pem",
            "rocketmq": True,
            "rocketmq_keys": self.secrets / "keys",
            "log_level": "debug",
            "reconnect_timeout": 0.3,
            "first_check": 0.3,
            **more,
        }


@pytest.fixture
def planted() -> Planted:
    return Planted()


@pytest.fixture(params=["mariadb", "mysql"])
def site(request: pytest.FixtureRequest, planted: Planted, tmp_path: Path) -> Iterator[Site]:
    kind: Kind = request.param
    secrets, work = tmp_path / "secrets", tmp_path / "work"
    secrets.mkdir()
    work.mkdir()
    server, user = server_url(kind), f"planted_{uuid.uuid4().hex[:8]}"
    database = create_database(server)
    password = planted.plant("the database's password")
    with connect(server, autocommit=True) as administrator, administrator.cursor() as cursor:
        cursor.execute(f"CREATE USER {user}@'%%' IDENTIFIED BY %s", (password,))
        cursor.execute(f"GRANT ALL ON {urlsplit(database).path.strip('/')}.* TO {user}@'%'")
    issuer = ec.generate_private_key(ec.SECP256R1())
    made = Site(
        planted, secrets, work, database, user, password, Authority.make(), issuer, planted.plant("a bearer token")
    )
    key, chain = made.authority.issue("broker")
    planted.plant("the broker's private key", line_of(key))
    public = {**jwt.algorithms.ECAlgorithm.to_jwk(issuer.public_key(), as_dict=True), "kid": "one", "alg": "ES256"}
    made.put("key.pem", key)
    made.put("chain.pem", chain)
    made.put("ca.pem", made.authority.pem)
    made.put("tokens.toml", f'[shop]\nsha256 = ["{hash_of(made.token)}"]\n')
    made.put("jwks.json", json.dumps({"keys": [public]}))
    made.put("database", made.url(password))
    yield made
    with connect(server, autocommit=True) as administrator, administrator.cursor() as cursor:
        cursor.execute(f"DROP USER {user}@'%'")
    drop_database(database)


def run(site: Site, where: str, *arguments: str, status: int, **variables: str) -> None:
    """Runs a command, and keeps what it wrote."""
    named = {f"HALFMQ_{name.upper()}": value for name, value in variables.items()}
    process = ForkedCommand(arguments, named, str(site.work))
    with process.stdout, process.stderr:
        written, errors = process.stdout.read(), process.stderr.read()
    assert process.wait(PATIENCE) == status, (where, written, errors)
    site.planted.keep(where, written, errors)


def keep_arguments(planted: Planted, pid: int) -> None:
    """Keeps the arguments of a process and of those that it started."""
    planted.keep(f"arguments of {pid}", Path(f"/proc/{pid}/cmdline").read_bytes())
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            keep_arguments(planted, int(child))


def keep_database(site: Site) -> int:
    """Keeps everything in the database; returns the number of rows."""
    rows = 0
    with connect(site.database) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        for (table,) in cursor.fetchall():
            cursor.execute(f"SELECT * FROM `{table}`")
            found = cursor.fetchall()
            rows += len(found)
            for row in found:
                site.planted.keep(f"table {table}", *row)
    return rows


def keep_files(site: Site) -> None:
    for file in site.work.rglob("*"):
        if file.is_file():
            site.planted.keep(f"file {file.name}", file.read_bytes())


async def told(planted: Planted, where: str, call: Any) -> grpc.StatusCode:
    """Makes a call that may be refused, and keeps what its client is told; how it ended."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        planted.keep(where, error, error.details(), error.debug_error_string(), *(error.trailing_metadata() or ()))
        return error.code()
    planted.keep(where, answer)
    return grpc.StatusCode.OK


async def call_natively(site: Site, endpoint: str) -> None:
    planted = site.planted
    key, chain = site.authority.issue("till")
    planted.plant("a client's private key", line_of(key))
    good, stranger = site.web_token("a JWT"), ec.generate_private_key(ec.SECP256R1())
    wrong = planted.plant("a wrong token")
    shown: dict[str, tuple[Any, grpc.StatusCode]] = {
        "a token": ((f"Bearer {site.token}",), grpc.StatusCode.OK),
        "a JWT": ((f"Bearer {good}",), grpc.StatusCode.OK),
        "a certificate": ((), grpc.StatusCode.OK),
        "a wrong token": ((f"Bearer {wrong}",), grpc.StatusCode.UNAUTHENTICATED),
        "a token with an end": ((f"Bearer {site.token}{'x' * 10}",), grpc.StatusCode.UNAUTHENTICATED),
        "a long token": ((f"Bearer {wrong * 100}",), grpc.StatusCode.UNAUTHENTICATED),
        "a bare token": ((site.token,), grpc.StatusCode.UNAUTHENTICATED),
        "two tokens": ((f"Bearer {site.token}", f"Bearer {wrong}"), grpc.StatusCode.UNAUTHENTICATED),
        "a password": ((f"Basic {_base64(wrong)}",), grpc.StatusCode.UNAUTHENTICATED),
        "a JWT of somebody else": (
            (f"Bearer {site.web_token('a JWT of somebody else', stranger)}",),
            grpc.StatusCode.UNAUTHENTICATED,
        ),
        "an old JWT": ((f"Bearer {site.web_token('an old JWT', seconds=-100)}",), grpc.StatusCode.UNAUTHENTICATED),
        "a broken JWT": ((f"Bearer {good}.{wrong}",), grpc.StatusCode.UNAUTHENTICATED),
    }
    async with grpc.aio.secure_channel(
        endpoint, grpc.ssl_channel_credentials(site.authority.pem, key, chain)
    ) as channel:
        send = producer_pb2_grpc.ProducerServiceStub(channel).Send
        for what, (headers, code) in shown.items():
            metadata = tuple(("authorization", each) for each in headers)
            for topic in ("orders", "secrets"):
                request = producer_pb2.SendRequest(messages=[message(topic)])
                call = send(request, metadata=metadata, timeout=PATIENCE)
                assert await told(planted, f"a call with {what}", call) is code


async def call_as_rocketmq(site: Site, endpoint: str, secret: str) -> None:
    planted = site.planted
    identity = site.authority.issue("rocketmq")
    for what, keys, code in (
        ("a secret", ("shop", secret), Code.OK),
        ("a wrong secret", ("shop", planted.plant("a wrong secret")), Code.UNAUTHORIZED),
        ("an unknown key", ("nobody", secret), Code.UNAUTHORIZED),
        ("nothing", None, Code.UNAUTHORIZED),
    ):
        async with RawClient(endpoint, keys=keys, authority=site.authority.pem, identity=identity) as raw:
            authorization = dict(raw.metadata()).get("authorization", "")
            if authorization:
                planted.plant(f"the signature of {what}", authorization.rpartition("=")[2])
            answer = await raw.call("Heartbeat", service_pb2.HeartbeatRequest(client_type=1))
            assert answer.status.code == code
            planted.keep(f"RocketMQ's client with {what}", answer)
            request = service_pb2.QueryRouteRequest(topic=resource("orders"))
            planted.keep(f"RocketMQ's client with {what}", await raw.call("QueryRoute", request))
    # The secret where the signature should be, and a time that is none.
    for authorization, when in ((f"MQv2-HMAC-SHA1 {secret}", "now"), (signature("shop", secret, secret), secret)):
        headers = {"authorization": authorization, "x-mq-date-time": when}
        async with RawClient(endpoint, headers=headers, authority=site.authority.pem, identity=identity) as raw:
            answer = await raw.call("Heartbeat", service_pb2.HeartbeatRequest(client_type=1))
            assert answer.status.code == Code.UNAUTHORIZED
            planted.keep("RocketMQ's client with something else", answer)


def use_the_sdk(site: Site, endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    planted, quick = site.planted, RetryConfig(attempts=1, deadline=5.0)
    key, chain = site.authority.issue("sdk")
    planted.plant("the private key of the SDK's client", line_of(key))
    tls = TlsConfig(site.authority.pem, client_certificate=chain, client_key=key)
    wrong = planted.plant("a wrong token of the SDK")
    file = site.put("token", site.token)
    with caplog.at_level(logging.DEBUG):
        from_file = TokenFile(file)
        for auth in (BearerToken(site.token), BearerToken(from_file), BearerToken(lambda: site.token)):
            connection = Connection(endpoint, tls=tls, auth=auth, retry=quick)
            with Admin(connection) as admin, Producer(connection) as producer:
                planted.keep("reprs of the SDK", auth, from_file, tls, connection, admin, producer)
                producer.send("orders", b"x")
        connection = Connection(endpoint, tls=tls, auth=BearerToken(wrong), retry=quick)
        with Admin(connection) as admin, pytest.raises(HalfmqError) as refused:
            list(admin.list_topics())
        with Consumer(connection, "readers", "orders") as consumer, pytest.raises(HalfmqError) as also_refused:
            consumer.receive()
        for error in (refused.value, also_refused.value):
            planted.keep("errors of the SDK", error, repr(error), vars(error), error.__cause__)
        for wrong_one in (f"{wrong} with blanks", f"{wrong}\n", wrong.encode()):
            with pytest.raises(HalfmqError) as bad:
                BearerToken(wrong_one)  # type: ignore[arg-type]
            planted.keep("errors of the SDK", bad.value, repr(bad.value))
        with pytest.raises(HalfmqError) as plain:
            Connection(endpoint, auth=BearerToken(wrong))
        planted.keep("errors of the SDK", plain.value, repr(plain.value))
    planted.keep("the SDK's log", caplog.text)


def look_at_settings(site: Site) -> None:
    config = BrokerConfig(database=site.url(site.password))
    site.planted.keep("reprs of settings", repr(config), config, vars(Broker(config)))


def fail_to_start(site: Site) -> None:
    """What brokers and commands write that do not start."""
    planted = site.planted
    wrong = planted.plant("a wrong password")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nowhere = f"127.0.0.1:{taken.getsockname()[1]}"
    serve = ("serve", "--listen=127.0.0.1:0", "--log-level=debug", "--reconnect-timeout=0.1")
    for what, url in (
        ("a wrong password", site.url(wrong)),
        ("no server", site.url(wrong, server=nowhere)),
        ("no host", site.url(wrong, server="nobody.invalid")),
        ("a port that is none", site.url(wrong, server=f"127.0.0.1:{wrong}")),
        ("an @ in the password", f"mysql://{site.user}:x@{wrong}@127.0.0.1/halfmq"),
        ("no database", f"mysql://{site.user}:{wrong}@127.0.0.1"),
        ("another database", f"postgresql://{site.user}:{wrong}@127.0.0.1/halfmq"),
        ("no URL", f"mysql:{site.user}:{wrong}@127.0.0.1/halfmq"),
        ("an unknown option", f"{site.url(wrong)}?password={wrong}"),
    ):
        run(site, f"serve with {what}", *serve, status=2, database=url)
        run(site, f"serve with {what}, in JSON", *serve, "--log-format=json", status=2, database=url)
        run(site, f"migrate with {what}", "migrate", status=2, database=url)
        run(site, f"access with {what}", "access", "rules", status=2, database=url)
        run(site, f"serve with {what} in a file", *serve, f"--database-file={site.put('url', url)}", status=2)
    two_lines = site.put("url", f"{site.url(wrong)}\n{wrong}\n")
    run(site, "serve with two lines", *serve, f"--database-file={two_lines}", status=2)
    broken = site.put("broker.toml", f'[broker]\ndatabase = "{site.url(wrong)}\n')
    run(site, "serve with a broken file", *serve, f"--config={broken}", status=2)
    unknown = site.put("broker.toml", f'[broker]\npassword = "{wrong}"\n')
    run(site, "serve with an unknown setting", *serve, f"--config={unknown}", status=2)
    listed = site.put("broker.toml", f'[broker]\ndatabase = ["{site.url(wrong)}"]\n')
    run(site, "serve with a list", *serve, f"--config={listed}", status=2)
    files: dict[str, tuple[str, str | bytes]] = {
        "access_tokens": (f'[shop]\nsha256 = ["{wrong}"]\n', f'[shop\n"{wrong}'),
        "rocketmq_keys": (f"shop {wrong}\n", b"shop:\xff" + wrong.encode()),
        "jwt_keys": (json.dumps({"keys": [{"kty": "oct", "k": wrong}]}), wrong),
    }
    others = {"access": "yes", "jwt_audience": AUDIENCE, "rocketmq": "yes"}
    rocketmq = {"rocketmq_keys": str(site.put("good", "shop:x\n"))}
    for setting, contents in files.items():
        for number, content in enumerate(contents):
            named = {**others, **rocketmq, "jwt_keys": str(site.secrets / "jwks.json")}
            named[setting] = str(site.put("wrong", content))
            run(site, f"serve with a wrong file {number} of {setting}", *serve, status=2, **named)


def administer(site: Site) -> None:
    """The commands of access, with the password in the environment and in a file."""
    file = f"--database-file={site.secrets / 'database'}"
    good = site.url(site.password)
    run(site, "migrate", "migrate", file, status=0)
    for subject in ("user:shop", "user:*"):
        run(site, "grant", "access", "grant", subject, "all", "*", "orders", status=0, database=good)
    run(site, "a wrong grant", "access", "grant", "nobody", "all", "*", "*", file, status=2)
    run(site, "rules", "access", "rules", file, status=0)
    run(site, "revoke", "access", "revoke", "2", status=0, database=good)
    run(site, "grant", "access", "grant", "user:*", "all", "*", "orders", status=0, database=good)
    # The one place where a token is written is where it is made.
    made = command.halfmq("access", "token", "other", f"--tokens={site.secrets / 'tokens.toml'}").strip()
    site.planted.plant("a token that was made", made)
    site.planted.keep("the file of tokens", (site.secrets / "tokens.toml").read_text())


def crash(site: Site) -> None:
    """A broker that ends by an error that nobody foresaw, with a traceback."""
    (site.secrets / "sitecustomize.py").write_text(
        "import broker.app\n"
        "def fail(self):\n    url = self.config.database\n    raise RuntimeError('the end')\n"
        "broker.app.Broker.start = fail\n"
    )
    url = site.url(site.password)
    done = command.run(
        "serve",
        "--listen=127.0.0.1:0",
        variables={"PYTHONPATH": f"{site.secrets}", "HALFMQ_DATABASE": url},
        folder=site.work,
    )
    assert "Traceback" in done.stderr
    assert "the end" in done.stderr
    site.planted.keep("a crash", done.stdout, done.stderr)


@contextlib.contextmanager
def another_password(site: Site) -> Iterator[None]:
    """The database refuses the password that the broker has."""
    other = site.planted.plant("another password")
    name = urlsplit(site.database).path.strip("/")
    with connect(site.database, autocommit=True) as administrator, administrator.cursor() as cursor:
        for password in (other, site.password):
            cursor.execute(f"ALTER USER {site.user}@'%%' IDENTIFIED BY %s", (password,))
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE db = %s AND user = %s", (name, site.user)
            )
            for (session,) in cursor.fetchall():
                with contextlib.suppress(Exception):  # it has just ended by itself
                    cursor.execute(f"KILL {session}")
            if password == other:
                yield


async def break_the_database(site: Site, endpoint: str) -> None:
    """Failures of calls: a table that is gone, which nobody foresees, and a database that cannot be reached."""
    planted = site.planted
    request = producer_pb2.SendRequest(messages=[message("orders")])
    key, chain = site.authority.issue("till")
    credentials = grpc.ssl_channel_credentials(site.authority.pem, key, chain)
    async with grpc.aio.secure_channel(endpoint, credentials) as channel:

        async def send() -> grpc.StatusCode | int:
            metadata = (("authorization", f"Bearer {site.token}"),)
            try:
                answer = await producer_pb2_grpc.ProducerServiceStub(channel).Send(request, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                planted.keep("a call that failed", error, error.details(), *(error.trailing_metadata() or ()))
                return error.code()
            planted.keep("a call that failed", answer)
            return int(answer.results[0].error.code)

        assert await send() == 0
        with connect(site.database, autocommit=True) as administrator, administrator.cursor() as cursor:
            cursor.execute("RENAME TABLE message TO gone")
            assert await send() != 0
            cursor.execute("RENAME TABLE gone TO message")
        with another_password(site):
            assert await send() != 0
        async with asyncio.timeout(PATIENCE):
            while await send() != 0:  # noqa: ASYNC110 - the broker tries again by itself
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_no_secret_is_written(site: Site, log_format: str, caplog: pytest.LogCaptureFixture) -> None:
    planted = site.planted
    secret = planted.plant("the secret of an access key")
    site.put("keys", f"shop:{secret}\n")
    await asyncio.to_thread(administer, site)
    settings = site.settings(log_format=log_format, database_file=site.secrets / "database")
    with BrokerProcess("", **settings) as broker:
        keep_arguments(planted, broker.process.pid)
        await asyncio.to_thread(use_admin, site, broker.endpoint)
        await call_natively(site, broker.endpoint)
        await call_as_rocketmq(site, broker.endpoint, secret)
        await asyncio.to_thread(use_the_sdk, site, broker.endpoint, caplog)
        await break_the_database(site, broker.endpoint)
        broker.stop()
    planted.keep("the broker's log", broker.log)
    assert "refused: what is shown is not accepted" in broker.log
    assert "Traceback" in broker.log
    rows = keep_database(site)
    assert rows > 20
    keep_files(site)
    look_at_settings(site)
    assert planted.found == []


def use_admin(site: Site, endpoint: str) -> None:
    key, chain = site.authority.issue("admin")
    tls = TlsConfig(site.authority.pem, client_certificate=chain, client_key=key)
    with Admin(Connection(endpoint, tls=tls, auth=BearerToken(site.token))) as admin:
        admin.create_topic("orders")


def test_no_secret_is_written_by_what_does_not_start(site: Site) -> None:
    fail_to_start(site)
    crash(site)
    keep_files(site)
    assert site.planted.found == []


def test_no_secret_is_in_the_arguments_of_workers(site: Site) -> None:
    site.put("keys", "shop:x\n")
    settings = site.settings(workers=2)
    with BrokerProcess("", {"HALFMQ_DATABASE": site.url(site.password)}, **settings) as broker:
        keep_arguments(site.planted, broker.process.pid)
        assert len(site.planted.written) >= 3
        broker.stop()
    site.planted.keep("the workers' log", broker.log)
    assert site.planted.found == []


def test_a_password_in_the_arguments_is_warned_of(site: Site) -> None:
    """The one way to give it that others on the machine can see; whoever takes it is told."""
    words = ("[warning", "--database-file", "HALFMQ_DATABASE")
    with BrokerProcess("", folder=site.work, database=site.url(site.password)) as broker:
        broker.await_log(*words)
    site.planted.keep("the log", broker.log)
    with BrokerProcess("", {"HALFMQ_DATABASE": site.url(site.password)}, folder=site.work) as broker:
        assert broker.count(*words) == 0
    with BrokerProcess("", folder=site.work, database_file=site.secrets / "database") as broker:
        assert broker.count(*words) == 0
    assert site.planted.found == []


def test_what_is_planted_is_found(planted: Planted) -> None:
    """The search itself."""
    secret = planted.plant("a secret", "aB/c@1")
    for text in (secret, "AB/C@1", "x aB%2Fc%401 x", f"b'{secret}'", base64.b64encode(secret.encode() + b"rest")):
        planted.written = {"here": str(text)}
        assert planted.found == ["a secret in here"]
    planted.written = {"here": "aB/c@2"}
    assert planted.found == []
