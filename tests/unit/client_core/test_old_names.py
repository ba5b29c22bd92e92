"""What moved is found under its old name, which says where it is."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

import consumer_sdk.spark
import producer_sdk
from broker.embedded import EmbeddedBroker
from client_core.errors import HalfmqError
from halfmq_pipeline.archive.job import Archive
from halfmq_pipeline.transactions import TransactionAnalytics

if TYPE_CHECKING:
    from types import ModuleType


@pytest.mark.parametrize(
    ("old", "new", "name", "expected"),
    [
        ("producer_sdk.errors", "client_core.errors", "HalfmqError", HalfmqError),
        ("producer_sdk.admin.admin", "client_core.admin.admin", "Admin", producer_sdk.Admin),
        (
            "consumer_sdk.spark.pipeline.transactions",
            "halfmq_pipeline.transactions",
            "TransactionAnalytics",
            TransactionAnalytics,
        ),
        ("consumer_sdk.spark.pipeline.archive.job", "halfmq_pipeline.archive.job", "Archive", Archive),
    ],
)
def test_an_old_name_leads_to_the_same_classes(old: str, new: str, name: str, expected: object) -> None:
    stay = {"producer_sdk", "consumer_sdk", "consumer_sdk.spark"}
    for known in [each for each in sys.modules if old.startswith(each) and each not in stay]:
        del sys.modules[known]
    with pytest.warns(DeprecationWarning, match="goes with the next release") as told:
        found = importlib.import_module(old)
    assert getattr(found, name) is expected
    where = "; import public names from producer_sdk" if new.startswith("client_core") else ""
    assert str(told[-1].message) == f"{old} is now {new}{where}; the old name goes with the next release"
    assert found is importlib.import_module(new)


@pytest.mark.parametrize(
    ("package", "old", "new"),
    [(producer_sdk, "errors", "client_core.errors"), (consumer_sdk, "queues", "consumer_sdk.reading")],
)
def test_an_old_module_is_also_an_attribute_of_its_package(package: ModuleType, old: str, new: str) -> None:
    package.__dict__.pop(old, None)
    sys.modules.pop(f"{package.__name__}.{old}", None)
    with pytest.warns(DeprecationWarning, match=f"is now {new}") as told:
        assert getattr(package, old) is importlib.import_module(new)
    assert told[0].filename == __file__, "where it is used"
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        ("producer_sdk.producer", "TransactionProducer", producer_sdk.TransactionProducer),
        ("producer_sdk.producer", "Transaction", producer_sdk.Transaction),
        ("producer_sdk.transaction", "AsyncTransaction", producer_sdk.AsyncTransaction),
        ("broker.app", "EmbeddedBroker", EmbeddedBroker),
    ],
)
def test_an_old_place_of_a_name(module: str, name: str, expected: object) -> None:
    with pytest.warns(DeprecationWarning, match="goes with the next release"):
        assert getattr(importlib.import_module(module), name) is expected
    with pytest.raises(AttributeError, match="nothing"):
        _ = importlib.import_module(module).nothing


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the old module, where no test before loaded it
def test_names_below_an_old_module_that_never_were() -> None:
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        importlib.import_module("producer_sdk.errors.nothing")
    with pytest.raises(ImportError, match="cannot import name"):
        exec("from producer_sdk.errors import Nothing")


def test_what_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"producer_sdk\.nothing"):
        importlib.import_module("producer_sdk.nothing")
    assert consumer_sdk.spark.__all__
