"""Modules that moved are found under their old names for one release more, with a DeprecationWarning."""

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
    """Finds modules by their old names; what is in them is the same under both."""

    def __init__(self, new: Mapping[str, str]) -> None:
        self._new = new

    def _new_name(self, name: str) -> str | None:
        for old, new in self._new.items():
            if name == old or name.startswith(f"{old}."):
                return new + name.removeprefix(old)
        return None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """A module that moved, if one is asked for."""
        return ModuleSpec(name, self, is_package=True) if self._new_name(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """A module as any other."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Gives it the names of the module that it was, and says where that is."""
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
    """Makes modules of old names known.

    Args:
        new: The new name of each; modules below one move with it.
    """
    sys.meta_path.append(_Moved(new))
