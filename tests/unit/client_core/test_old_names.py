"""What moved is found under its old name, which says where it is."""

from __future__ import annotations

import importlib
import sys

import pytest

import consumer_sdk.spark
import producer_sdk
from client_core.errors import HalfmqError
from pipeline.archive.job import Archive
from pipeline.transactions import TransactionAnalytics


@pytest.mark.parametrize(
    ("old", "new", "name", "expected"),
    [
        ("producer_sdk.errors", "client_core.errors", "HalfmqError", HalfmqError),
        ("producer_sdk.admin.admin", "client_core.admin.admin", "Admin", producer_sdk.Admin),
        (
            "consumer_sdk.spark.pipeline.transactions",
            "pipeline.transactions",
            "TransactionAnalytics",
            TransactionAnalytics,
        ),
        ("consumer_sdk.spark.pipeline.archive.job", "pipeline.archive.job", "Archive", Archive),
    ],
)
def test_an_old_name_leads_to_the_same_classes(old: str, new: str, name: str, expected: object) -> None:
    stay = {"producer_sdk", "consumer_sdk", "consumer_sdk.spark"}
    for known in [each for each in sys.modules if old.startswith(each) and each not in stay]:
        del sys.modules[known]
    with pytest.warns(DeprecationWarning, match="goes with the next release") as told:
        found = importlib.import_module(old)
    assert getattr(found, name) is expected
    assert str(told[-1].message) == f"{old} is now {new}; the old name goes with the next release"


def test_what_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"producer_sdk\.nothing"):
        importlib.import_module("producer_sdk.nothing")
    assert consumer_sdk.spark.__all__
