"""Bearer tokens and JWTs that are wrong in any way."""

from __future__ import annotations

import base64
import hmac
import json
import time
from typing import TYPE_CHECKING, Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from fuzz.authority import ISSUER, bearer, good_claims, hidden, shown
from fuzz.changes import anything, changed

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from fuzz.authority import Authority, Headers

_SCHEMES = (
    *(
        "",
        " ",
        "Basic ",
        "Bearer",
        "Bearer\t",
        "Bearer:",
        "Bearer=",
        "Bearer,",
        "Bearer\u00a0",
        "\u0412earer ",
        "Token ",
    ),
    *("Bear er ", "Bearer\x00", "\ufeffBearer ", "x Bearer ", "Bearer x ", "token=", "Bearer\r\n "),
)
_OTHER_HEADERS = (
    *(
        "x-authorization",
        "proxy-authorization",
        "authorization-bin",
        "authorizatio",
        "authorizations",
        "cookie",
        "token",
    ),
    *("x-forwarded-authorization", "x-mq-session-token", "x-user", "x-forwarded-client-cert"),
)
_ALGORITHMS: tuple[Any, ...] = (
    *(
        "none",
        "None",
        "NONE",
        "nOnE",
        "",
        None,
        0,
        [],
        ["ES256"],
        {},
        "HS256",
        "HS256",
        "HS384",
        "HS512",
        "hs256",
        "RS1",
    ),
    *("RS256", "ES256", "EdDSA", "PS256", "ES384", "ES512", "ES256K", "es256", "ES256 ", "x" * 300),
)
_KEY_NAMES: tuple[Any, ...] = (
    *("../../../../dev/null", "/etc/passwd", "file:///dev/null", "https://evil.example/keys", "x" * 3000, "", " one"),
    *(
        "one ",
        "One",
        "one\x00",
        "\u043ene",
        "' OR 1=1 --",
        "one;two",
        "*",
        "${jndi:ldap://x}",
        "%00",
        "\ud800",
        None,
        7,
    ),
    *(1.5, True, [], ["one"], {}, {"kid": "one"}, 10**30, "two", "three"),
)
_DEEP = (10, 200, 1000, 2200)
_TEXTS: tuple[Any, ...] = (
    "",
    " ",
    "x",
    7,
    0,
    -1,
    1.5,
    True,
    False,
    None,
    [],
    {},
    [[]],
    {"a": 1},
    [7],
    [None],
    "x" * 2000,
)
_HUGE: tuple[Any, ...] = (1e308, 10**400, 10**3000, 253_402_300_800, 10**15, float("inf"))
_NO_TIMES: tuple[Any, ...] = ("soon", "9999999999", "", [9999999999], {}, True, False, None, "NaN", "\u0661\u0662")
_NAN, _LEAST = float("nan"), float("-inf")
_WRONG: dict[str, tuple[Any, ...]] = {
    "exp": (0, -0.0, 1, -1, -(10**18), -1e308, *_HUGE, _LEAST, _NAN, *_NO_TIMES),
    "nbf": (*_HUGE, _LEAST, _NAN, "soon", [], {}),
    "aud": (*_TEXTS, "Halfmq", "halfmq ", "half", ["x"], ["halfmq", 7], {"halfmq": 1}, "\u04bbalfmq"),
    "iss": (*_TEXTS, ISSUER + "/", ISSUER.upper(), [ISSUER], "https://evil.example"),
    "sub": (*_TEXTS[3:], "", "a\nb", "a\x00", "\u202ealice", "\ud800", "x" * 201, "\u2028"),
    "roles": (7, True, {"shop": 1}, [7], ["shop", None], [["shop"]], 1e308, _NAN),
    "tenant": (7, True, [], {}, ["acme"], "a%b", "a b", " ", "../x", "x" * 101, "a\n", "\u0430"),
}
_EACH = 8
"""Good JWTs by each key, which others are made from."""


class ForgedBearers:
    """Makes them, as a seeded source of randomness says."""

    def __init__(self, random: Random, authority: Authority) -> None:
        self._random, self._authority = random, authority
        self._jwts = [authority.jwt(algorithm=each) for each in ("ES256", "EdDSA", "RS256") for _ in range(_EACH)]
        self._good = [authority.token, *self._jwts[:2]]
        self._shared = authority.shared
        self._makers: list[Callable[[], Headers | None]] = [
            self.any_bytes,
            self.changed_token,
            self.changed_scheme,
            self.several_headers,
            self.another_header,
            self.injected_header,
            self.changed_jwt,
            self.parts_of_two,
            self.another_algorithm,
            self.another_key,
            self.name_of_a_key,
            self.odd_header,
            self.wrong_claims,
            self.odd_payload,
        ]

    def forge(self) -> tuple[str, Headers]:
        """What is wrong, and the headers of a call."""
        while True:
            make = self._random.choice(self._makers)
            if (headers := make()) is not None:
                return make.__name__, headers

    def any_bytes(self) -> Headers:
        return (("authorization", self._random.choice([b"Bearer ", b"bearer ", b""]) + anything(self._random)),)

    def changed_token(self) -> Headers:
        return bearer(changed(self._random, self._authority.token))

    def changed_scheme(self) -> Headers:
        return (("authorization", f"{self._random.choice(_SCHEMES)}{self._authority.token}".encode()),)

    def several_headers(self) -> Headers:
        good = self._random.choice(self._good)
        other = self._random.choice([b"", b"Bearer ", b"Bearer x", f"Bearer {good}".encode(), b"Basic eDp4", b"\xff"])
        both = [("authorization", f"Bearer {good}".encode()), ("authorization", other)]
        if self._random.random() < 0.3:
            return bearer(f"{good}, Bearer {good}")
        self._random.shuffle(both)
        return tuple(both)

    def another_header(self) -> Headers:
        name, value = self._random.choice(_OTHER_HEADERS), f"Bearer {self._random.choice(self._good)}".encode()
        return ((name, base64.b64encode(value) if name.endswith("-bin") else value),)

    def injected_header(self) -> Headers:
        good = self._random.choice(self._good)
        between = self._random.choice(["\r\n", "\n", "\x00", "\r", "\u2028", "\\r\\n", "%0d%0a", ", "])
        before = self._random.choice(["x", "", "Bearer x", "Bearer "])
        return (("authorization", f"{before}{between}authorization: Bearer {good}".encode()),)

    def changed_jwt(self) -> Headers:
        good = self._random.choice(self._jwts)
        if self._random.random() < 0.5:
            return bearer(changed(self._random, good))
        # A bit of what a part says.
        parts = good.split(".")
        which = self._random.randrange(3)
        raw = bytearray(shown(parts[which]))
        raw[self._random.randrange(len(raw))] ^= 1 << self._random.randrange(8)
        parts[which] = hidden(bytes(raw))
        return bearer(".".join(parts))

    def parts_of_two(self) -> Headers | None:
        one, two = (self._random.choice(self._jwts) for _ in range(2))
        parts = [self._random.choice(pair) for pair in zip(one.split("."), two.split("."), strict=True)]
        match self._random.randrange(5):
            case 0:
                parts.pop(self._random.randrange(3))
            case 1:
                parts.insert(self._random.randrange(4), self._random.choice(["", "e30", parts[1]]))
            case 2:
                self._random.shuffle(parts)
            case 3:
                parts[self._random.randrange(3)] = self._random.choice(["", "e30", "bnVsbA", "W10", "IiI", "MA"])
            case _:
                pass
        made = ".".join(parts)
        return None if made in self._jwts else bearer(made)

    def another_algorithm(self) -> Headers:
        """None, a shared key that is a public one, or the algorithm of another key."""
        name = self._random.choice(["one", "two", "three", None])
        header = {"typ": "JWT", "alg": self._random.choice(_ALGORITHMS), **({"kid": name} if name else {})}
        if self._random.random() < 0.1:
            del header["alg"]
        text = _unsigned(header)
        if self._random.random() < 0.4:
            return bearer(f"{text}.{self._random.choice(['', self._jwts[0].rpartition('.')[2], 'AA'])}")
        digest = self._random.choice(["sha256", "sha384", "sha512"])
        return bearer(f"{text}.{hidden(hmac.digest(self._random.choice(self._shared), text.encode(), digest))}")

    def another_key(self) -> Headers:
        """Of somebody else, who tells where it is."""
        own = ec.derive_private_key(self._random.randrange(1, 1 << 200), ec.SECP256R1())
        jwk = jwt.algorithms.ECAlgorithm.to_jwk(own.public_key(), as_dict=True)
        header: dict[str, Any] = {"typ": "JWT", "alg": "ES256", "kid": self._random.choice(["one", "two", "mine"])}
        url = self._random.choice(["https://evil.example/keys", "file:///etc/passwd", ""])
        header |= self._random.choice(
            [{}, {"jwk": jwk}, {"jku": url}, {"x5u": url}, {"x5c": ["AA"]}, {"crit": ["jwk"], "jwk": jwk}]
        )
        text = _unsigned(header)
        return bearer(f"{text}.{hidden(jwt.get_algorithm_by_name('ES256').sign(text.encode(), own))}")

    # What follows has good signatures.

    def name_of_a_key(self) -> Headers:
        return bearer(self._authority.jwt(header={"kid": self._random.choice(_KEY_NAMES)}))

    def odd_header(self) -> Headers:
        deep = self._random.choice(_DEEP)
        header = self._random.choice(
            [b"", b"null", b"[]", b"7", b'"ES256"', b"{}", b'{"alg": "ES256"', b"[" * deep, b'{"a":' * (deep // 3),
             b'{"alg":"ES256","alg":"none","kid":"one"}', b'{"alg":"none","kid":"one","alg":"HS256"}', b'{"alg":1e999}',
             b'{"alg":"ES256","kid":"one","kid":"two"}', b'{"alg":"ES256","kid":"one"}x', b'{"alg":NaN,"kid":"one"}',
             b'\xef\xbb\xbf{"alg":"HS256","kid":"one"}', b'{"alg":"ES256","kid":"one"\xff}',
             b'{"alg":"ES256","kid":"one","b64":false,"crit":["b64"]}', b'{"alg":' + b"9" * 3000 + b"}",
             '{"alg":"HS256","kid":"one"}'.encode("utf-16"), b'{"alg":"ES256","kid":"on\\u0435"}']
        )  # fmt: skip
        return bearer(self._authority.jwt(header=header))

    def wrong_claims(self) -> Headers:
        random, claims = self._random, good_claims()
        name = random.choice([*_WRONG])
        claims[name] = random.choice(_WRONG[name])
        if random.random() < 0.1:
            claims |= random.choice([{"exp": time.time() - 31}, {"nbf": int(time.time()) + 3600}])
        if random.random() < 0.05:
            claims = good_claims()
            del claims[random.choice(["exp", "aud", "iss", "sub"])]
        return bearer(self._authority.jwt(claims, algorithm=random.choice(["ES256", "EdDSA"])))

    def odd_payload(self) -> Headers:
        good, deep = json.dumps(good_claims()), self._random.choice(_DEEP)
        raw = good.encode()
        content = self._random.choice(
            [b"", b"null", b"[]", b"7", raw[:-1], b"[" * deep, b'{"a":' * (deep // 3), raw + b"x", b"[" + raw + b"]",
             json.dumps(good).encode(), b"\xff" + raw, b"{" + b'"a":"' + b"x" * 4000 + b'"}',
             # The last one of a name counts.
             raw[:-1] + b', "sub": 7}', raw[:-1] + b', "exp": 1}', raw[:-1] + b', "aud": "other"}',
             raw[:-1] + b', "exp": NaN}', raw[:-1] + b', "exp": 1e999}', raw[:-1] + b', "exp": ' + b"9" * 3000 + b"}",
             raw.replace(b'"sub"', b'"Sub"'), raw.replace(b'"exp"', b'"exp "'), good.replace('"a', '"\u0430').encode()]
        )  # fmt: skip
        return bearer(self._authority.jwt(content))


def _unsigned(header: dict[str, Any]) -> str:
    """Of somebody who has no good one."""
    claims = {**good_claims(), "sub": "root"}
    return f"{hidden(json.dumps(header).encode())}.{hidden(json.dumps(claims).encode())}"
