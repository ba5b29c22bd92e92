"""The old place of the package `pipeline`; its names are found here for one release more."""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_NEW = "pipeline"


class _Moved(MetaPathFinder, Loader):
    """Finds `consumer_sdk.spark.pipeline.x` in `pipeline.x`: the same classes under both names."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """A module of this package, if it is asked for."""
        return ModuleSpec(name, self, is_package=True) if name.startswith(f"{__name__}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """A module as any other."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Gives it the names of the module that it was."""
        moved = importlib.import_module(_NEW + module.__name__.removeprefix(__name__))
        module.__dict__.update({name: value for name, value in vars(moved).items() if not name.startswith("__")})


sys.meta_path.append(_Moved())
warnings.warn(
    f"{__name__} is now {_NEW}: write `from {_NEW}.archive import ...`; the old name goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
