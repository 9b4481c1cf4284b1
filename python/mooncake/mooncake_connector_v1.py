# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""mooncake.mooncake_connector_v1: the module that kv_connector_module_path names in command lines for older releases of vLLM.
Later releases have the connector themselves; this module imports it: vLLM's class that moves caches by mooncake.engine."""
import importlib

_HOMES = ("vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector",
          "vllm.distributed.kv_transfer.kv_connector.v1.mooncake_connector")

__all__ = ["MooncakeConnector"]


def _module():
    for home in _HOMES:
        try:
            return importlib.import_module(home)
        except ModuleNotFoundError as e:
            if e.name is None or not (home == e.name or home.startswith(e.name + ".")):
                raise  # of what the connector itself wants
    raise ImportError("mooncake.mooncake_connector_v1 leads to the MooncakeConnector of vLLM (0.13 or later), which is not installed here; with it "
                      "kv_connector_module_path can be left out")


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_module(), name)
