from __future__ import annotations

import subprocess
import sys
from enum import Enum

import client_core.connection
import producer_sdk


def test_the_public_names_are_exactly_these() -> None:
    public = {
        name
        for name, value in vars(producer_sdk).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith(("producer_sdk.", "client_core."))
    }
    assert public == set(producer_sdk.__all__)
    assert list(producer_sdk.__all__) == sorted(producer_sdk.__all__)


def test_every_public_name_has_a_docstring_of_its_own() -> None:
    for name in (*producer_sdk.__all__, *client_core.connection.__all__):
        value = getattr(producer_sdk, name, None) or getattr(client_core.connection, name)
        if isinstance(value, type):
            assert value.__doc__, name
            inherited = value.__mro__[1].__doc__ if not issubclass(value, Enum) else None
            assert value.__doc__ != inherited, name


def test_importing_the_sdk_loads_neither_broker_nor_sqlalchemy() -> None:
    code = (
        "import sys, producer_sdk; "
        "bad = {'broker', 'sqlalchemy', 'pymysql', 'alembic', 'pytest'} & {m.split('.')[0] for m in sys.modules}; "
        "sys.exit(str(bad) if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
