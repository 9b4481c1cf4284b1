# SPDX-License-Identifier: Apache-2.0
"""The cases of tests/engines/scheduler_cases.py: vLLM's real scheduler with our connector. They run in the environment that
$KVPOOL_VLLM_VENV names, with its own vLLM (0.32), and once more with the Python sources of 0.33 where $KVPOOL_VLLM_033 names their folder
(that of the sdist, which has vllm/). An environment is made as tests/engines/run makes it; it needs no GPU, and no model is run."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest

import kvpool
from conftest import ROOT, SLOW

CASES = ROOT / "tests" / "engines" / "scheduler_cases.py"
PYTHON = pathlib.Path(os.environ.get("KVPOOL_VLLM_VENV", "nowhere")) / "bin" / "python"
SOURCES = os.environ.get("KVPOOL_VLLM_033")
RUN_S = 240 * SLOW  # most of it is the import, half a minute without compiled files on a busy machine
CASE_RE = re.compile(r"^(ok|FAILED) (\w+) \([\d.]+ s\): (.*)$", re.M)

if not PYTHON.exists():
    pytest.skip("KVPOOL_VLLM_VENV names no environment with vLLM", allow_module_level=True)


def _cases():
    """(version, name) of every case that can run here."""
    listed = subprocess.run([sys.executable, CASES, "--list"], capture_output=True, text=True, check=True, timeout=60)
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [(version, name) for version in ("32", "33") if version == "32" or SOURCES for name, *versions in rows if version in versions]


_runs = {}  # version: what the one run of all cases gave


def _run(version):
    if version not in _runs:
        # Compiled files are written: without them every import of vLLM takes half a minute.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        with tempfile.TemporaryDirectory() as folder:  # this wheel's package, and nothing else of its environment
            pathlib.Path(folder, "kvpool").symlink_to(pathlib.Path(kvpool.__file__).parent)
            environment["PYTHONPATH"] = folder
            _runs[version] = subprocess.run([PYTHON, CASES, *(["--vllm-033", SOURCES] if version == "33" else [])], capture_output=True,
                                            text=True, timeout=RUN_S, env=environment)
    ran = _runs[version]
    return ran, {case: (word, text) for word, case, text in CASE_RE.findall(ran.stdout)}


@pytest.mark.limit(RUN_S + 20)
@pytest.mark.parametrize("version, name", _cases())
def test_scheduler(version, name):
    ran, said = _run(version)
    assert name in said, f"exit code {ran.returncode}, no line of this case\n{ran.stdout}\n{ran.stderr}"
    word, text = said[name]
    assert word == "ok", f"{text}\n{ran.stderr}"


def test_with_033():
    if not SOURCES:
        pytest.skip("KVPOOL_VLLM_033 names no folder with the sources of vLLM 0.33")
    assert _run("33")[0].returncode == 0
