"""Tenants: names before the separator of RocketMQ's namespaces, as `acme%orders`, and what each may use."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from broker.domain.dead_letter import DEAD_LETTER_PREFIX
from broker.errors import InvalidArgument, Overloaded

SEPARATOR = "%"
EACH_TENANT = "*"
"""Stands for each tenant without a quota of its own."""
LARGEST_LIMIT = 1 << 62
_TENANT = re.compile(r"[A-Za-z0-9_-]{1,40}")


def is_tenant(name: str) -> bool:
    """Whether it can be the name of a tenant: 1 to 40 letters, digits, `-` and `_`."""
    return _TENANT.fullmatch(name) is not None


def tenant_of(name: str) -> str:
    """The tenant of a topic, group or sink, by its name; empty if it has none."""
    tenant, separator, _ = name.removeprefix(DEAD_LETTER_PREFIX).partition(SEPARATOR)
    return tenant if separator else ""


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may use; 0: without limit.

    Attributes:
        tenant: its name, or EACH_TENANT.
        messages_per_second, bytes_per_second: that its clients may send, to each broker.
        topics: without those of dead letters.
        groups: of consumers, with the members of those that broadcast, and of producers.
        retained_bytes: of the bodies in its topics, those that are scheduled and half messages included, and of the
            positions of its sinks.
        streams: under way at each broker.
        pending_transactions: without a verdict, those of sinks included.
    """

    tenant: str
    messages_per_second: int = 0
    bytes_per_second: int = 0
    topics: int = 0
    groups: int = 0
    retained_bytes: int = 0
    streams: int = 0
    pending_transactions: int = 0

    @property
    def limits(self) -> tuple[int, ...]:
        """All limits, in the order of the attributes."""
        return (
            self.messages_per_second,
            self.bytes_per_second,
            self.topics,
            self.groups,
            self.retained_bytes,
            self.streams,
            self.pending_transactions,
        )

    def check(self) -> None:
        """Checks what somebody asks for.

        Raises:
            InvalidArgument: names the field that is wrong.
        """
        if self.tenant != EACH_TENANT and not is_tenant(self.tenant):
            raise InvalidArgument(
                "A tenant is 1 to 40 letters, digits, - and _; or * for each one without a quota of its own.",
                field="quota.tenant",
            )
        for each in fields(self)[1:]:
            if not 0 <= getattr(self, each.name) <= LARGEST_LIMIT:
                raise InvalidArgument(f"A limit is between 0 (none) and {LARGEST_LIMIT}.", field=f"quota.{each.name}")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant uses now of what is measured.

    Attributes:
        retained_bytes, pending_transactions: as those of Quota.
    """

    retained_bytes: int = 0
    pending_transactions: int = 0


def over_quota(tenant: str, what: str, wait: float) -> Overloaded:
    """The refusal of what a tenant may have no more of; takes the seconds after which to come back."""
    return Overloaded(
        f"The tenant {tenant!r} has used up its quota of {what}; come back in {wait:.1f} s, or ask for more of it"
        " (`halfmq admin access quota`).",
        retry_after=wait,
        reason="QUOTA_EXCEEDED",
    )
