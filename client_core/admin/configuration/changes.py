"""A change that a document asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ConfigurationChange"]


@dataclass(frozen=True, slots=True)
class ConfigurationChange:
    """A change of the configuration.

    Attributes:
        action: What is done.
        kind: Kind of what is changed.
        name: Its name; of a filter its group and topic, of a rule what it says.
        before: Its settings that change, as a document has them; empty when it is created.
        after: The same settings afterwards; empty when it is deleted.
        content: What it is made from.
    """

    action: Literal["create", "update", "delete"]
    kind: Literal["topic", "group", "filter", "rule", "quota"]
    name: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    content: Any = field(default=None, repr=False, compare=False)
