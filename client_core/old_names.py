"""Moved modules and names can be used by their old names for one more release, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

__all__ = ["lead_on", "moved"]


class _Moved(MetaPathFinder, Loader):
    """Finds modules by their old names; each is the same module as by its new name."""

    def __init__(self, new: Mapping[str, str]) -> None:
        self._new = new

    def new_name(self, name: str) -> str | None:
        """The new name of a module; None: it has not moved, or is none."""
        for old, new in self._new.items():
            if name == old or name.startswith(f"{old}."):
                wanted = new + name.removeprefix(old)
                try:
                    return wanted if importlib.util.find_spec(wanted) is not None else None
                except ModuleNotFoundError:
                    return None
        return None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a moved module, if the name is one."""
        new = self.new_name(name)
        if new is None:
            return None
        found = importlib.util.find_spec(new)
        return ModuleSpec(name, self, is_package=found is not None and found.submodule_search_locations is not None)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Creates an ordinary module, which the new one replaces."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Replaces the module with the new one, and warns with its location."""
        name = module.__name__
        new = self.new_name(name) or name
        found = importlib.import_module(new)
        _warn(name, new, 2)
        sys.modules[name] = found


def lead_on(new: Mapping[str, str]) -> None:
    """Registers the old names of modules, also as attributes of the packages that they were in.

    Args:
        new: The new name of each; modules below one move with it.
    """
    finder = _Moved(new)
    # First: a moved module has the path of the new one, on which others would find a second copy of what is below it.
    sys.meta_path.insert(0, finder)
    for package in {old.rpartition(".")[0] for old in new}:
        loaded = sys.modules.get(package)
        if loaded is not None and not hasattr(loaded, "__getattr__"):
            loaded.__dict__["__getattr__"] = _modules_of(finder, package)


def moved(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module whose names are elsewhere now.

    Args:
        module: The module's name.
        names: The module in which each name is now.
    """

    def find(name: str) -> Any:
        if name not in names:
            msg = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(msg)
        _warn(f"{module}.{name}", f"{names[name]}.{name}", 2)
        return getattr(importlib.import_module(names[name]), name)

    return find


def _modules_of(finder: _Moved, package: str) -> Callable[[str], Any]:
    def find(name: str) -> Any:
        old = f"{package}.{name}"
        new = finder.new_name(old)
        if new is None:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        _warn(old, new, 2)
        sys.modules[old] = importlib.import_module(new)
        return sys.modules[old]

    return find


def _warn(old: str, new: str, level: int) -> None:
    package = old.partition(".")[0]
    where = f"; import public names from {package}" if new.startswith("client_core") else ""
    warnings.warn(
        f"{old} is now {new}{where}; the old name goes with the next release", DeprecationWarning, stacklevel=level + 1
    )
