# SPDX-License-Identifier: Apache-2.0
"""The connector for vLLM: {"kv_connector": "KVPoolConnector", "kv_connector_module_path": "kvpool.vllm", ...}. The other modules of
this package can be imported where vLLM is not installed."""
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "KVPoolConnector":
        from .connector import KVPoolConnector
        return KVPoolConnector
    raise AttributeError(name)
