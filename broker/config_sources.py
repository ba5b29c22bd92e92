"""Reads the settings.

Arguments take precedence over the environment (HALFMQ_<NAME>), then the TOML file (a table [broker]), then the
defaults.
"""

from __future__ import annotations

import os
import stat
import tomllib
import warnings
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.config import BrokerConfig
from broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT_PREFIX = "HALFMQ_"
OLD_NAMES = {"patience": "reconnect_timeout"}
"""Settings by their former names; still accepted in this version, with a warning."""
_TYPES = {field.name: field.type for field in fields(BrokerConfig)} | {"database_file": "str"}


def load_config(
    arguments: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
    renamed: list[str] | None = None,
) -> BrokerConfig:
    """Reads the settings from all sources.

    Instead of database they may set database_file: the name of a file that holds the URL.

    Args:
        arguments: from the command line; None where unset.
        environment: HALFMQ_* variables; by default the process's environment.
        file: a TOML file with a table [broker].
        renamed: gets a warning for each setting that is given by an old name; None: they are issued as FutureWarning.

    Raises:
        ConfigurationError: an unknown name, a value of the wrong kind, or one out of bounds.
    """
    environment = os.environ if environment is None else environment
    from_environment = {}
    for name in (*_TYPES, *OLD_NAMES):
        text = environment.get(ENVIRONMENT_PREFIX + name.upper())
        if text is not None:
            from_environment[name] = _parse(name, text, f"{ENVIRONMENT_PREFIX}{name.upper()}")
    from_arguments = {name: value for name, value in arguments.items() if value is not None}
    settings: dict[str, Any] = {}
    sources = (
        (_from_file(file) if file else {}, str(file)),
        (from_environment, "the environment"),
        (from_arguments, "the command line"),
    )
    for found, source in sources:
        settings.update(_with_database(_with_new_names(found, source, renamed)))
    return BrokerConfig(**settings)


def _with_new_names(settings: dict[str, Any], source: str, renamed: list[str] | None) -> dict[str, Any]:
    settings = dict(settings)
    for old in OLD_NAMES.keys() & settings.keys():
        new = OLD_NAMES[old]
        if new in settings:
            raise ConfigurationError(f"{old} is the old name of {new}, which is set too; leave it out.", field=old)
        named = f"{ENVIRONMENT_PREFIX}{old.upper()}" if source == "the environment" else old
        warning = f"the setting {named} in {source} is now called {new}; the old name goes with the next version"
        if renamed is None:
            # A category that is shown by default: DeprecationWarning would be hidden outside of tests.
            warnings.warn(warning, FutureWarning, 3)
        else:
            renamed.append(warning)
        settings[new] = settings.pop(old)
    return settings


def _with_database(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings from one source, with the database's URL read from its file if they name one."""
    settings = dict(settings)
    named = settings.pop("database_file", "")
    if not named:
        return settings
    if "database" in settings:
        raise ConfigurationError("database and database_file are both set; one of them is enough.", field="database")
    try:
        content = Path(named).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigurationError(
            f"The file {named!r} cannot be read: {error.strerror}.", field="database_file"
        ) from None
    except UnicodeDecodeError:
        content = ""
    if not content or "\n" in content:
        raise ConfigurationError(
            f"The file {named!r} must hold one line, the URL of the database.", field="database_file"
        )
    return {**settings, "database": content}


def _from_file(file: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"The file {str(file)!r} cannot be read: {error.strerror}.", field="config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The file {str(file)!r} is not TOML: {error}.", field="config") from None
    table = content.get("broker", {})
    if not isinstance(table, dict):
        raise ConfigurationError(
            f"In the file {str(file)!r} broker is a value; settings go into a table [broker].", field="config"
        )
    unknown = sorted(set(table) - set(_TYPES) - set(OLD_NAMES)) + sorted(set(content) - {"broker"})
    if unknown:
        raise ConfigurationError(
            f"The file {str(file)!r} has settings that do not exist: {', '.join(unknown)}. "
            f"There are, in the table [broker]: {', '.join(_TYPES)}.",
            field="config",
        )
    return {name: _parse(name, value, name) for name, value in table.items()}


def _parse(name: str, value: Any, shown: str) -> Any:
    kind = _TYPES[OLD_NAMES.get(name, name)]
    try:
        if str(kind).startswith("bool"):
            return _parse_bool(value)
        if kind == "int":
            return _parse_number(int, value)
        if str(kind).startswith("float"):
            return _parse_number(float, value)
        if not isinstance(value, str):
            raise ValueError(value)
    except ValueError:
        if kind == "str":
            # It may be a URL with a password.
            raise ConfigurationError(f"{shown} must be a text.", field=name) from None
        wanted = {"bool": "true or false", "int": "a whole number", "float": "a number"}[str(kind).partition(" ")[0]]
        raise ConfigurationError(f"{shown} is {value!r}; it must be {wanted}.", field=name) from None
    return value


def _parse_number(kind: type[int] | type[float], value: Any) -> int | float:
    # bool is an int, and int() truncates floats.
    if isinstance(value, bool) or not isinstance(value, str | int | kind):
        raise ValueError(value)
    return kind(value)


def _parse_bool(value: Any) -> bool:
    text = str(value).lower()
    if text in {"1", "true", "yes", "on"}:
        return True
    if text in {"0", "false", "no", "off"}:
        return False
    raise ValueError(text)


def seen_by_all(file: str) -> bool:
    """Whether every user of this machine can read a file that a setting names; False if it does not exist."""
    try:
        mode = Path(file).stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & stat.S_IROTH)
