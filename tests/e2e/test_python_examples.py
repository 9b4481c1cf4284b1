# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/python run in this interpreter, which has the wheel installed (stage `python` of tests/run)."""
import subprocess
import sys

import pytest

from conftest import ROOT, SLOW, clean_env

LAST_LINES = {
    "put_get": "the bytes are equal",
    "connector_step": "loaded 8 blocks, computed 0",
    "p2p": "request-1: all blocks are written; the bytes are right",
}


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "python").glob("*.py")), ids=lambda path: path.stem)
def test_program_runs(pool, bench, path):
    command = [sys.executable, path] + ([] if path.stem == "p2p" else [pool.addr])
    ran = subprocess.run(command, env=clean_env(bench.home), text=True, capture_output=True, timeout=60 * SLOW)
    assert ran.returncode == 0 and ran.stdout.splitlines()[-1] == LAST_LINES[path.stem], ran
