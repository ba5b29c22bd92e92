from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from halfmq.v1 import producer_pb2_grpc
from producer_sdk import AsyncProducer, BrokerUnavailable, RetryConfig, TlsConfig
from unit.producer_sdk.stub_broker import StubBroker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ONCE = RetryConfig(attempts=1)


def self_signed(name: str) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


@pytest.fixture(scope="module")
def broker_pair() -> tuple[bytes, bytes]:
    return self_signed("broker.test")


@pytest.fixture(scope="module")
def client_pair() -> tuple[bytes, bytes]:
    return self_signed("client.test")


@pytest.fixture
async def endpoint(broker_pair: tuple[bytes, bytes], client_pair: tuple[bytes, bytes]) -> AsyncIterator[str]:
    server = grpc.aio.server()
    producer_pb2_grpc.add_ProducerServiceServicer_to_server(StubBroker(), server)
    credentials = grpc.ssl_server_credentials(
        [(broker_pair[1], broker_pair[0])], root_certificates=client_pair[0], require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


async def test_both_sides_prove_who_they_are(
    endpoint: str, broker_pair: tuple[bytes, bytes], client_pair: tuple[bytes, bytes]
) -> None:
    tls = TlsConfig(broker_pair[0], *client_pair, server_name="broker.test")
    async with AsyncProducer(endpoint, tls=tls, retry=ONCE) as producer:
        assert (await producer.send("orders", b"x")).topic == "orders"


@pytest.mark.parametrize("wrong", ["no client certificate", "other authority", "other name"])
async def test_a_side_that_cannot_is_not_talked_to(
    endpoint: str, broker_pair: tuple[bytes, bytes], client_pair: tuple[bytes, bytes], wrong: str
) -> None:
    tls = {
        "no client certificate": TlsConfig(broker_pair[0], server_name="broker.test"),
        "other authority": TlsConfig(client_pair[0], *client_pair, server_name="broker.test"),
        "other name": TlsConfig(broker_pair[0], *client_pair),
    }[wrong]
    async with AsyncProducer(endpoint, tls=tls, retry=ONCE) as producer:
        with pytest.raises(BrokerUnavailable):
            await producer.send("orders", b"x")
