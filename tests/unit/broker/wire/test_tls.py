"""Files of TLS that are replaced one by one: a real server on loopback."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio

from broker.errors import ConfigurationError
from broker.wire.tls import CertificateFiles
from support.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

OLD, NEW = Authority.make("old"), Authority.make("new")


class Site:
    """A server, its files, and clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.put(*zip(("key.pem", "chain.pem"), OLD.issue("server"), strict=True), ("ca.pem", OLD.pem))
        self.port = 0

    def put(self, *files: tuple[str, bytes]) -> None:
        """Replaces files, each as a whole."""
        for name, content in files:
            new = self.folder / f"{name}.new"
            new.write_bytes(content)
            new.replace(self.folder / name)

    def files(self) -> CertificateFiles:
        return CertificateFiles(*(str(self.folder / name) for name in ("chain.pem", "key.pem", "ca.pem")))

    async def serves(self, server: Authority, client: Authority) -> bool:
        """Whether a new connection is made that trusts one authority, and shows a certificate of another one."""
        credentials = grpc.ssl_channel_credentials(server.pem, *client.issue("client"))
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, options=options) as channel:
            try:
                await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                return False
        return True


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(aio.HealthServicer(), server)
    made.port = server.add_secure_port("127.0.0.1:0", made.files().credentials())
    await server.start()
    yield made
    await server.stop(None)


async def test_another_authority_counts_while_only_the_chain_is_new(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    assert await site.serves(OLD, OLD)
    assert not await site.serves(OLD, NEW)
    key, chain = NEW.issue("server")
    site.put(("chain.pem", chain), ("ca.pem", OLD.pem + NEW.pem))
    assert await site.serves(OLD, NEW)
    assert await site.serves(OLD, OLD)
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1
    site.put(("key.pem", key))
    assert await site.serves(NEW, NEW)
    assert not await site.serves(OLD, NEW)


async def test_another_certificate_is_used_while_the_authority_is_none(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.put(*zip(("key.pem", "chain.pem"), NEW.issue("server"), strict=True), ("ca.pem", b"nothing"))
    assert await site.serves(NEW, OLD)
    assert "ca.pem" in caplog.text
    site.put(("ca.pem", NEW.pem))
    assert await site.serves(NEW, NEW)
    assert not await site.serves(NEW, OLD)


async def test_files_that_are_gone_change_nothing(site: Site) -> None:
    for name in ("key.pem", "ca.pem"):
        (site.folder / name).unlink()
        assert await site.serves(OLD, OLD)
        assert not await site.serves(OLD, NEW)


def test_at_the_start_they_have_to_be_there(tmp_path: Path) -> None:
    site = Site(tmp_path)
    (tmp_path / "ca.pem").unlink()
    with pytest.raises(ConfigurationError, match=r"ca\.pem") as refused:
        site.files().credentials()
    assert refused.value.field == "tls_certificate"
