"""Names that moved are found in their old place, which says where they are."""

from __future__ import annotations

import importlib
import sys

import pytest

from pipeline.archive.job import Archive
from pipeline.transactions import TransactionAnalytics


def test_the_pipelines_old_place_leads_to_the_same_classes() -> None:
    for name in [name for name in sys.modules if name.startswith("consumer_sdk.spark.pipeline")]:
        del sys.modules[name]
    with pytest.warns(DeprecationWarning, match=r"is now pipeline: write `from pipeline\.archive import"):
        old = importlib.import_module("consumer_sdk.spark.pipeline.transactions")
    assert old.TransactionAnalytics is TransactionAnalytics
    assert importlib.import_module("consumer_sdk.spark.pipeline.archive.job").Archive is Archive
    with pytest.raises(ModuleNotFoundError, match=r"pipeline\.nothing"):
        importlib.import_module("consumer_sdk.spark.pipeline.nothing")
