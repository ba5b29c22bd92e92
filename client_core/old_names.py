"""Moved modules can be imported by their old names for one more release, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

__all__ = ["lead_on"]


class _Moved(MetaPathFinder, Loader):
    """Finds modules by their old names; their contents are identical."""

    def __init__(self, new: Mapping[str, str]) -> None:
        self._new = new

    def _new_name(self, name: str) -> str | None:
        for old, new in self._new.items():
            if name == old or name.startswith(f"{old}."):
                return new + name.removeprefix(old)
        return None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a moved module, if the name is one."""
        return ModuleSpec(name, self, is_package=True) if self._new_name(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Creates an ordinary module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Copies the names of the new module, and warns with its location."""
        new = self._new_name(module.__name__) or module.__name__
        found = importlib.import_module(new)
        warnings.warn(
            f"{module.__name__} is now {new}; the old name goes with the next release", DeprecationWarning, stacklevel=2
        )
        module.__dict__.update({name: value for name, value in vars(found).items() if not name.startswith("__")})
        module.__doc__ = found.__doc__
        if hasattr(found, "__all__"):
            module.__dict__["__all__"] = found.__all__


def lead_on(new: Mapping[str, str]) -> None:
    """Registers the old names of modules.

    Args:
        new: The new name of each; modules below one move with it.
    """
    sys.meta_path.append(_Moved(new))
