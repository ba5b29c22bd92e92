"""RocketMQ's messages and service, from the package of its official Python client.

Only the generated modules are loaded. The package itself is the client: importing it opens a log file in the user's
home and starts OpenTelemetry, which a broker does not need and may not be allowed to do. The client can be imported
later (or have been imported before) in the same process: the modules are the same ones.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGE, _MODULES = "rocketmq", "rocketmq.grpc_protocol"


def _load(*names: str) -> Sequence[Any]:
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise _missing()
    # While the modules are loaded, the packages around them are empty ones.
    location = found.submodule_search_locations[0]
    stand_ins = {_PACKAGE: location, _MODULES: f"{location}/grpc_protocol"}
    added = [name for name in stand_ins if name not in sys.modules]
    for name in added:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [stand_ins[name]]
    try:
        return [importlib.import_module(f"{_MODULES}.{name}") for name in names]
    except ModuleNotFoundError:
        # Other packages have the same name.
        raise _missing() from None
    finally:
        for name in added:
            del sys.modules[name]


def _missing() -> ConfigurationError:
    return ConfigurationError(
        "The gateway for RocketMQ's clients needs the extra: pip install 'halfmq[rocketmq]'.", field="rocketmq"
    )


definition_pb2, service_pb2, service_pb2_grpc = _load("definition_pb2", "service_pb2", "service_pb2_grpc")

Code = definition_pb2.Code
SERVICE = service_pb2.DESCRIPTOR.services_by_name["MessagingService"].full_name
