"""Good credentials: a bearer token, keys of which a broker knows the public halves, and an access key of RocketMQ."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from broker.wire.credentials.tokens import hash_of, new_token

AUDIENCE, ISSUER = "halfmq", "https://id.example"
ACCESS_KEY, SECRET = "shop", "its secret"
DATE = "20260101T101112Z"
Headers = tuple[tuple[str, bytes], ...]
"""As they go over the wire."""

_KINDS: dict[str, Any] = {
    "ES256": jwt.algorithms.ECAlgorithm,
    "EdDSA": jwt.algorithms.OKPAlgorithm,
    "RS256": jwt.algorithms.RSAAlgorithm,
}


class Authority:
    """Who makes good credentials.

    Attributes:
        token: a bearer token.
        public: the public keys, as a JWKS has them.
    """

    def __init__(self) -> None:
        self.token = new_token()
        self._keys: dict[str, tuple[str, Any]] = {
            "ES256": ("one", ec.generate_private_key(ec.SECP256R1())),
            "EdDSA": ("two", ed25519.Ed25519PrivateKey.generate()),
            "RS256": ("three", rsa.generate_private_key(public_exponent=65537, key_size=2048)),
        }
        self.public: list[dict[str, Any]] = [
            {**_KINDS[algorithm].to_jwk(key.public_key(), as_dict=True), "kid": name, "alg": algorithm}
            for algorithm, (name, key) in self._keys.items()
        ]

    @property
    def tokens_file(self) -> bytes:
        """A file of tokens."""
        return f'[alice]\nsha256 = ["{hash_of(self.token)}"]\n'.encode()

    @property
    def key_set(self) -> bytes:
        """A JWKS."""
        return json.dumps({"keys": self.public}).encode()

    @property
    def shared(self) -> list[bytes]:
        """Forms of the public keys that may be taken for a shared key."""
        found = [self.key_set, b"", b"secret"]
        for (_, key), jwk in zip(self._keys.values(), self.public, strict=True):
            found += [
                key.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
                for encoding in (Encoding.DER, Encoding.PEM)
            ]
            found += [json.dumps(jwk).encode(), str(jwk.get("x") or jwk.get("n")).encode()]
        return found

    def jwt(
        self,
        claims: dict[str, Any] | bytes | None = None,
        header: dict[str, Any] | bytes | None = None,
        algorithm: str = "ES256",
    ) -> str:
        """A token with a good signature, whatever is in it; by default one that is accepted."""
        name, key = self._keys[algorithm]
        if not isinstance(header, bytes):
            header = json.dumps({"typ": "JWT", "alg": algorithm, "kid": name, **(header or {})}).encode()
        if not isinstance(claims, bytes):
            claims = json.dumps(good_claims() if claims is None else claims).encode()
        signed = f"{hidden(header)}.{hidden(claims)}"
        made = jwt.get_algorithm_by_name(algorithm).sign(signed.encode(), key)
        return f"{signed}.{hidden(made)}"


def hidden(content: bytes) -> str:
    """As parts of a JWT are written."""
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def shown(part: str) -> bytes:
    """What a part of a JWT says."""
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def good_claims() -> dict[str, Any]:
    """Of a token that is accepted."""
    return {"sub": "alice", "aud": AUDIENCE, "iss": ISSUER, "exp": int(time.time()) + 86_400, "roles": ["shop"]}


def bearer(token: str | bytes) -> Headers:
    """The header of a bearer token."""
    return (("authorization", b"Bearer " + (token.encode() if isinstance(token, str) else token)),)


def signed(date: str = DATE, key: str = ACCESS_KEY, secret: str = SECRET) -> Headers:
    """The headers of a call of RocketMQ's protocol."""
    made = hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest()
    text = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={made}"
    return (("authorization", text.encode()), ("x-mq-date-time", date.encode()))
