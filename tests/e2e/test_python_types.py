# SPDX-License-Identifier: Apache-2.0
"""What the packages tell type checkers: that it is complete, what a program's reader would expect, and what runs."""
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("mypy", reason="mypy is not installed (stage `python` of tests/run installs it)")

PACKAGES = ["kvpool", "mooncake"]

# The names of vLLM, which has 6 GB, that kvpool.vllm imports.
VLLM = {
    "distributed/kv_transfer/kv_connector/factory": """
        class KVConnectorFactory:
            @staticmethod
            def register_connector(name: str, module: str, kind: str) -> None: ...
        """,
    "distributed/kv_transfer/kv_connector/v1/base": """
        import enum
        from typing import Any, Set
        class KVConnectorRole(enum.Enum):
            SCHEDULER = 0
        class KVConnectorMetadata: ...
        class KVConnectorWorkerMetadata: ...
        class SupportsHMA: ...
        class KVConnectorTransferResults:
            def __init__(self, finished_recving: Set[str], failed_recving: Set[str]) -> None: ...
        class KVConnectorBase_V1:
            def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None: ...
            def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None: ...
            def _get_connector_metadata(self) -> Any: ...
        """,
    "distributed/kv_transfer/kv_connector/v1/metrics": """
        from typing import Any, Dict
        class KVConnectorStats:
            data: Dict[str, Any]
            def __init__(self, data: Any = None) -> None: ...
        class KVConnectorPromMetrics:
            _counter_cls: Any
            _gauge_cls: Any
            def __init__(self, *arguments: Any) -> None: ...
        """,
    "distributed/parallel_state": "from typing import Any\ndef get_pp_group() -> Any: ...\ndef get_tp_group() -> Any: ...",
    "v1/core/kv_cache_coordinator": "from typing import Any\ndef replay_boundaries(*arguments: Any) -> Any: ...",
    "v1/core/kv_cache_utils": """
        from typing import Any, Tuple
        class KVCacheBlock:
            def __init__(self, block_id: int) -> None: ...
        def resolve_kv_cache_block_sizes(cache: Any, config: Any) -> Tuple[int, int]: return 1, 1
        """,
}


@pytest.fixture
def vllm_names(tmp_path):
    for name, text in VLLM.items():
        file = tmp_path / "vllm" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        for folder in list(file.relative_to(tmp_path).parents)[:-1]:
            (tmp_path / folder / "__init__.py").touch()


def run(module, *args, cwd):
    return subprocess.run([sys.executable, "-m", module, *args], cwd=cwd, capture_output=True, text=True, timeout=300)


@pytest.mark.limit(300)
@pytest.mark.parametrize("package", PACKAGES)
def test_types_are_those_of_what_runs(package, tmp_path, vllm_names):
    """Fails if a name, an argument or a default that checkers are told of is another one in what is imported. (What they are not told
    of yet they refuse.)"""
    done = run("mypy.stubtest", "--ignore-missing-stub", package, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.limit(300)
def test_packages_are_typed_themselves(tmp_path, vllm_names):
    done = run("mypy", "--strict", "-p", "kvpool", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


PROGRAM = """
    import array
    from typing import Dict, List, Union
    import kvpool
    import numpy as np
    from mooncake.engine import TransferEngine
    from mooncake.store import MooncakeDistributedStore, ReplicateConfig

    def plain(pool: kvpool.Pool) -> None:
        pool.put("k", b"x", pin="soft")
        pool.put(b"k", np.zeros(4))
        value: bytes = pool.get("k")
        n: int = pool.get_into("k", array.array("b", [0]))
        errors: List[Union[int, kvpool.Error]] = pool.get_many(["k"], [[bytearray(1), np.zeros(4)]])
        with pool.view("k") as memory, pool.longest_prefix(["k"]) as found:
            memory.cast("B")
            found.granted.bit_length()

    async def awaited() -> int:
        async with kvpool.AsyncPool(threads=2) as pool:
            value: bytes = await pool.get("k")
            async for key, length in pool.list("p"):
                key.decode()
            with await pool.view("k") as memory:
                memory.cast("B")
            return await pool.get_into("k", np.zeros(4))

    def dropped_in(store: MooncakeDistributedStore, engine: TransferEngine) -> None:
        config = ReplicateConfig()
        config.replica_num = 2
        code: int = store.put("k", b"x", config)
        codes: List[int] = store.batch_get_into(["k"], [1], [1])
        value: bytes = store.get("k")
        port: int = engine.get_rpc_port()
"""

# Each is refused, for the reason named.
WRONG = {
    "pool.put(1, b'x')": "arg-type",
    "pool.put('k', 'text')": "arg-type",
    "pool.put('k', b'x', pin='firm')": "arg-type",
    "pool.get('k').missing": "attr-defined",
    "pool.get_many(['k'], [b'x'])[0] + 1": "operator",
    "apool.get('k') + b'x'": "operator",
    "kvpool.AsyncPool(thread=2)": "call-arg",
    "store.get_size('k', 1, 2)": "call-arg",
    "store.put('k')": "call-arg",
    "store.put(5, b'x')": "arg-type",
}


@pytest.mark.limit(300)
def test_a_program_against_them(tmp_path):
    lines = ["import kvpool", "from mooncake.store import MooncakeDistributedStore",
             "def f(pool: kvpool.Pool, apool: kvpool.AsyncPool, store: MooncakeDistributedStore) -> None:"]
    (tmp_path / "right.py").write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "wrong.py").write_text("\n".join(lines + [f"    {line}" for line in WRONG]) + "\n")
    done = run("mypy", "--strict", "right.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run("mypy", "--strict", "wrong.py", cwd=tmp_path)
    for i, (line, code) in enumerate(WRONG.items(), start=len(lines) + 1):
        assert f"wrong.py:{i}: error:" in done.stdout and any(
            f"wrong.py:{i}:" in said and f"[{code}]" in said for said in done.stdout.splitlines()), (line, done.stdout)
