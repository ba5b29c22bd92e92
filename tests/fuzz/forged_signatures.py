"""Signatures of RocketMQ's clients that are wrong in any way."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING

from fuzz.authority import ACCESS_KEY, DATE, SECRET, signed
from fuzz.changes import anything, changed

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from fuzz.authority import Authority, Headers

_KEYS = (ACCESS_KEY, ACCESS_KEY.upper(), "", "nobody", "\u0455hop", "shop\x00", "x" * 3000)
_SECRETS = ("", "-", SECRET + " ", SECRET.upper(), "None", SECRET[:-1], ACCESS_KEY)
_OTHER_DATES = (
    *("", " ", DATE + " ", DATE[:-1], DATE.lower(), "20260101T101113Z", "now", DATE + "\x00", "\uff12" + DATE[1:]),
    *("9" * 3000, f"{DATE}, {DATE}", DATE + "\r\n"),
)
_SIGNATURE = hmac.new(SECRET.encode(), DATE.encode(), hashlib.sha1).hexdigest()
_LONGER = hmac.new(SECRET.encode(), DATE.encode(), hashlib.sha256).hexdigest()
_BEFORE = f"MQv2-HMAC-SHA1 Credential={ACCESS_KEY}, SignedHeaders=x-mq-date-time, Signature="
_FORMS = (
    *("", _SIGNATURE, f"MQv2-HMAC-SHA1 {_SIGNATURE}", _BEFORE, f"{_BEFORE}{_LONGER}", f"{_BEFORE}{_SIGNATURE[:20]}"),
    *(f"{_BEFORE}{_SIGNATURE * 2}", f"{_BEFORE}{'0' * 40}", f"{_BEFORE}{_SIGNATURE}, x=y", f'{_BEFORE}"{_SIGNATURE}"'),
    _BEFORE.replace("SHA1", "SHA256") + _LONGER,
    _BEFORE.replace("SHA1", "SHA256") + _SIGNATURE,
    _BEFORE.replace("MQv2-HMAC", "mqv2-hmac") + _SIGNATURE,
    _BEFORE.replace("x-mq-date-time", "") + _SIGNATURE,
    _BEFORE.replace("x-mq-date-time", "x-mq-date-time;host") + _SIGNATURE,
    _BEFORE.replace(",", "") + _SIGNATURE,
    f"MQv2-HMAC-SHA1 SignedHeaders=x-mq-date-time, Credential={ACCESS_KEY}, Signature={_SIGNATURE}",
    *("MQv2-HMAC-SHA1 Credential=" + "a" * 5000, "MQv2-HMAC-SHA1 Credential=a," + " " * 5000),
)


class ForgedSignatures:
    """Makes them, as a seeded source of randomness says."""

    def __init__(self, random: Random, authority: Authority) -> None:
        self._random, self._authority = random, authority
        self._makers: list[Callable[[], Headers | None]] = [
            self.any_bytes,
            self.changed_signature,
            self.another_secret,
            self.another_time,
            self.another_form,
            self.several_headers,
        ]

    def forge(self) -> tuple[str, Headers]:
        """What is wrong, and the headers of a call."""
        while True:
            make = self._random.choice(self._makers)
            if (headers := make()) is not None:
                return make.__name__, headers

    def any_bytes(self) -> Headers:
        before = self._random.choice(
            [b"", b"MQv2-HMAC-SHA1 ", _BEFORE.encode(), f"Bearer {self._authority.token}".encode()]
        )
        return (("authorization", before + anything(self._random)), signed()[1])

    def changed_signature(self) -> Headers | None:
        (name, good), date = signed()
        made = changed(self._random, good.decode())
        return None if _meaning(made) == _meaning(good) else ((name, made), date)

    def another_secret(self) -> Headers:
        return signed(key=self._random.choice(_KEYS), secret=self._random.choice(_SECRETS))

    def another_time(self) -> Headers:
        """The signature is that of another one."""
        return (signed()[0], ("x-mq-date-time", self._random.choice(_OTHER_DATES).encode()))

    def another_form(self) -> Headers:
        return (("authorization", self._random.choice(_FORMS).encode()), signed()[1])

    def several_headers(self) -> Headers:
        authorization, date = signed()
        return self._random.choice(
            [
                (authorization, authorization, date),
                (("authorization", b"x"), authorization, date),
                (authorization, ("authorization", b"\xff"), date),
                (authorization, ("x-mq-date-time", b"20200101T000000Z"), date),
                (authorization, date, date),
                (authorization,),
                (date,),
                (("x-authorization", authorization[1]), date),
                (("authorization-bin", base64.b64encode(authorization[1])), date),
                (authorization, ("x-mq-date-time-bin", base64.b64encode(date[1]))),
            ]
        )


def _meaning(text: bytes) -> str:
    """Blanks between its parts, and letters of either case, are no change."""
    return "".join(text.decode("latin-1").lower().split())
