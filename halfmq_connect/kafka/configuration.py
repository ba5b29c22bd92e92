"""Settings of the commands, from a TOML file and from options; options come first."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from halfmq_connect.kafka.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Configuration"]


@dataclass
class Configuration:
    """What a command is to do; `kafka` are settings of Kafka's client, `settings` those of the direction."""

    name: str = ""
    endpoint: str = "localhost:8085"
    topics: dict[str, str] = field(default_factory=dict)
    kafka: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path | None, kind: type) -> Self:
        """Reads a file: name, endpoint and settings on top, then the tables ``topics`` and ``kafka``.

        Raises:
            ConfigurationError: It cannot be read, or has something that is no setting.
        """
        found = cls()
        if file is None:
            return found
        try:
            content = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            msg = f"{file}: {error}"
            raise ConfigurationError(msg, field="config") from error
        known = {each.name for each in fields(kind)}
        for name, value in content.items():
            if name in {"topics", "kafka"}:
                getattr(found, name).update(_table(file, name, value))
            elif name in {"name", "endpoint"}:
                setattr(found, name, value)
            elif name in known:
                found.settings[name] = value
            else:
                there = ", ".join(["name", "endpoint", "topics", "kafka", *sorted(known)])
                msg = f"{file}: {name!r} is no setting; there are {there}"
                raise ConfigurationError(msg, field=name)
        return found

    def with_options(
        self,
        name: str | None,
        topics: Sequence[str] | None,
        servers: str | None,
        endpoint: str | None,
        kafka: Sequence[str] | None,
        settings: Mapping[str, Any],
    ) -> Self:
        """Adds what options say.

        Raises:
            ConfigurationError: The bridge has no name, or an option is malformed.
        """
        self.name, self.endpoint = name or self.name, endpoint or self.endpoint
        for each in topics or ():
            start, equals, end = each.partition("=")
            self.topics[start] = end if equals else start
        for each in kafka or ():
            setting, equals, value = each.partition("=")
            if not equals:
                msg = f"--kafka {each!r} is no NAME=VALUE"
                raise ConfigurationError(msg, field="kafka")
            self.kafka[setting] = value
        if servers:
            self.kafka["bootstrap.servers"] = servers
        self.settings |= {name: value for name, value in settings.items() if value is not None}
        if not self.name:
            msg = "the bridge has no name; its positions are kept under it (name, --name)"
            raise ConfigurationError(msg, field="name")
        return self


def _table(file: Path, name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        msg = f"{file}: {name} is a table: [{name}]"
        raise ConfigurationError(msg, field=name)
    return value
