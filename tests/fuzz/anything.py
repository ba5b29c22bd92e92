"""Requests with any values in any fields; often with good names among them, so that what stands beside those counts."""

from __future__ import annotations

import time
from collections import deque
from functools import cache
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor as descriptors
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from random import Random

Kind = descriptors.FieldDescriptor
DEEPEST = 5
REMEMBERED = 300
SECONDS = [
    -1,
    0,
    1,
    30,
    60,
    3600,
    43_201,
    86_401,
    31_622_401,
    2**31,
    253_402_300_799,
    253_402_300_800,
    -(2**63),
    2**63 - 1,
]
SMALL = [0, 1, 1, 2, 3, 5, 10, 16]
INTEGERS = [0, 1, -1, 2, 7, 31, 32, 33, 127, 128, 255, 256, 1000, 1001, 4096, 65_535, 100_000, 999_999_999, 10**9]
BOUNDS = {
    Kind.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    Kind.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    Kind.CPPTYPE_UINT32: (0, 2**32 - 1),
    Kind.CPPTYPE_UINT64: (0, 2**64 - 1),
}
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, float("inf"), float("-inf"), float("nan")]
# What is on either side of a bound, and what looks like something.
TEXTS = [
    *("", " ", "a ", "\x00", "\n", "\x7f", "|", "%", "*", "||", "a||b", "a || b", "'", "\\", "%s", "{}", "../x", "?"),
    *("x" * 120, "x" * 127, "x" * 128, "x" * 255, "x" * 256, "x" * 300, "ü" * 64, "ü" * 128, "🐙", "🐙" * 64, "\ufeff"),
    *("%DLQ%x", "%RETRY%x", "n%t", "halfmq.x", "0" * 32, f"01{'A' * 32}", f"01{'a' * 32}", "1.2.3", "7.7.7", "00000"),
    *("n > 1 AND TAGS = 'a'", "n >", "a LIKE '%_%' ESCAPE '\\'", "((((((1=1))))))", "x IN ('a', 'b')", "a IS NULL"),
    *("6f9619ff-8b86-d011-b42d-00c04fc964ff", "00000000-0000-0000-0000-000000000000", "2026-01-01T00:00:00Z", "-1"),
]
# Names of fields whose values are taken from answers, and from what the campaign made: the same thing has many.
SAME = {
    "transaction_ids": "transaction_id",
    "receipt_handles": "receipt_handle",
    "next_page_token": "page_token",
    "message_ids": "message_id",
    "dead_letter_topic": "topic",
    "topics": "topic",
    "groups": "group",
}


def memory_of(field_name: str) -> str:
    """Under which name values of a field are remembered."""
    return SAME.get(field_name, field_name)


class Anything:
    """Makes requests from the descriptors of their messages, as a seeded source of randomness says."""

    def __init__(self, random: Random, good: dict[str, list[Any]]) -> None:
        """Takes good values by the names of fields."""
        self._random = random
        self._good = good
        self._met: dict[str, deque[Any]] = {}
        self._wild = 0.3

    def remember(self, response: Any) -> None:
        """Keeps what may be said in later requests: handles, identities, tokens."""
        for field, value in response.ListFields():
            if field.message_type is not None:
                if field.message_type.GetOptions().map_entry:
                    continue
                for each in list(value)[:3] if field.is_repeated else [value]:
                    self.remember(each)
            elif field.cpp_type == Kind.CPPTYPE_STRING:
                kept = self._met.setdefault(memory_of(field.name), deque(maxlen=REMEMBERED))
                kept.extend(list(value)[:3] if field.is_repeated else [value])

    def request(self, descriptor: Any, *, first: bool = False) -> bytes:
        """A request as it goes over the wire: mostly a message of this kind, sometimes something else.

        Args:
            descriptor: of the kind.
            first: it begins a stream; of what it may be, that is mostly what is named first.
        """
        # In one request in three nearly all is as it should be: what stands behind the first looks is reached, too.
        self._wild = self._random.choice([0.02, 0.15, 0.4])
        dice = self._random.random()
        if dice < 0.01:
            return b""
        if dice < 0.03:
            return self._random.randbytes(self._random.choice([1, 5, 40, 400]))
        made = self.message(descriptor)
        if first and descriptor.oneofs and self._random.random() > self._wild:
            beginning = descriptor.oneofs[0].fields[0]
            if beginning.message_type is not None:
                getattr(made, beginning.name).CopyFrom(self.message(beginning.message_type, 1))
        raw = made.SerializeToString()
        return self._damaged(raw) if dice < 0.1 else raw

    def _damaged(self, raw: bytes) -> bytes:
        if not raw:
            return b"\xff"
        damaged = bytearray(raw)
        for _ in range(self._random.choice([1, 1, 3, 10])):
            where = self._random.randrange(len(damaged))
            match self._random.randrange(4):
                case 0:
                    damaged[where] = self._random.randrange(256)
                case 1:
                    del damaged[where:]
                case 2:
                    damaged[where:where] = self._random.randbytes(3)
                case _:
                    damaged += damaged[where : where + 50]
            if not damaged:
                break
        return bytes(damaged)

    def message(self, descriptor: Any, depth: int = 0) -> Any:
        """A message of this kind."""
        made = GetMessageClass(descriptor)()
        if descriptor.full_name in {"google.protobuf.Timestamp", "google.protobuf.Duration"}:
            self._fill_time(made)
            return made
        # Few fields, or most of them.
        share = self._random.choice([0.3, 0.7, 0.9, 0.97])
        for field in _fields(descriptor):
            if depth > DEEPEST or self._random.random() > share:
                continue
            choice = field.containing_oneof
            taken = choice is not None and made.WhichOneof(choice.name) is not None
            if not taken or self._random.random() < 1 / len(choice.fields):
                self._fill(made, field, depth)
        return made

    def _fill(self, made: Any, field: Any, depth: int) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for _ in range(self._few()):
                getattr(made, field.name)[self._plain(key)] = self._plain(value)
        elif field.message_type is not None:
            if field.is_repeated:
                getattr(made, field.name).extend(
                    self.message(field.message_type, depth + 1) for _ in range(self._few())
                )
            else:
                getattr(made, field.name).CopyFrom(self._inner(field, depth))
        elif field.is_repeated:
            getattr(made, field.name).extend(self._plain(field) for _ in range(self._few()))
        else:
            setattr(made, field.name, self._plain(field))

    def _inner(self, field: Any, depth: int) -> Any:
        inner = self.message(field.message_type, depth + 1)
        if field.message_type.name == "Resource" and field.name in self._good and self._random.random() > self._wild:
            inner.Clear()
            inner.name = self._random.choice(self._good[field.name])
        return inner

    def _few(self) -> int:
        return self._random.choice([0, 1, 1, 1, 2, 2, 3, 5]) if self._random.random() < 0.99 else 40

    def _fill_time(self, made: Any) -> None:
        random = self._random
        if random.random() > self._wild:
            now = int(time.time()) if made.DESCRIPTOR.name == "Timestamp" else 0
            made.seconds = now + random.choice([-3600, -1, 0, 0, 1, 5, 3600] if now else [0, 1, 30, 60, 600, 3600])
            return
        made.seconds = random.choice(SECONDS)
        if random.random() < 0.4:
            made.nanos = random.choice([0, 1, -1, 1000, 500_000_000, 999_999_999, 10**9, -(10**9), 2**31 - 1, -(2**31)])

    def _plain(self, field: Any) -> Any:
        random, kind = self._random, field.cpp_type
        if kind == Kind.CPPTYPE_STRING:
            return self._bytes() if field.type == Kind.TYPE_BYTES else self._text(field)
        if kind == Kind.CPPTYPE_BOOL:
            return random.random() < 0.5
        if kind in {Kind.CPPTYPE_FLOAT, Kind.CPPTYPE_DOUBLE}:
            return random.choice(FLOATS)
        if kind == Kind.CPPTYPE_ENUM:
            known = [value.number for value in field.enum_type.values]
            return random.choice([*known, 77, -1] if random.random() < self._wild else known)
        return self._number(field.name, *BOUNDS[kind])

    def _number(self, name: str, least: int, most: int) -> int:
        random = self._random
        if random.random() > self._wild:
            return int(random.choice(self._good.get(name, SMALL)))
        number = random.choice(INTEGERS) if random.random() < 0.8 else random.randint(least, most)
        number = random.choice([number, number, number, least, most])
        return min(max(number, least), most)

    def _bytes(self) -> bytes:
        size = self._random.choice([0, 1, 5, 16, 16, 16, 200, 2000]) if self._random.random() < 0.999 else 1 << 20
        return self._random.randbytes(size)

    def _text(self, field: Any) -> str:
        random, name = self._random, memory_of(field.name)
        met = self._met.get(name)
        if random.random() > self._wild:
            if name in self._good and not (met and random.random() < 0.2):
                return str(random.choice(self._good[name]))
            return str(random.choice(met)) if met else f"x{random.randrange(100)}"
        if random.random() < 0.9:
            return random.choice(TEXTS)
        return "".join(chr(random.choice([random.randrange(32, 127), random.randrange(0xD7FF)])) for _ in range(20))


@cache
def _fields(descriptor: Any) -> tuple[Any, ...]:
    return tuple(descriptor.fields)
