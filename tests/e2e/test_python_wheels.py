# SPDX-License-Identifier: Apache-2.0
"""Mooncake's wheel in one environment with ours: both have the package `mooncake`. KVPOOL_REFERENCE_VENV names an environment with
Mooncake's (tests/run makes one)."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvpool
from reference_sides import reference_python


@pytest.fixture
def site(tmp_path):
    """A copy of this wheel's packages, as pip lays them out."""
    ours = Path(kvpool.__file__).parents[1]
    for package in ("kvpool", "mooncake"):
        shutil.copytree(ours / package, tmp_path / package)
    return tmp_path


def imported(site, name):
    """What an import prints on stderr."""
    done = subprocess.run([sys.executable, "-c", f"import {name}"], env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True,
                          text=True, check=True)
    return done.stderr


def found_by_doctor(site):
    program = site / "kvpool/bin/kvpool"
    done = subprocess.run([program, "doctor", "--json", "--master", "127.0.0.1:1", "--deadline", "1s"], capture_output=True, text=True,
                          check=False)
    return {row["code"]: f"{row['what']}; {row['fix']}" for row in json.loads(done.stdout)["findings"] if row["code"].startswith("wheel")}


def test_wheel_alone_has_nothing_to_say(site):
    assert imported(site, "mooncake.store") == "" and found_by_doctor(site) == {}


def test_mooncakes_wheel_over_ours_and_ours_over_mooncakes(site):
    theirs = next((reference_python().parents[1] / "lib").glob("python*/site-packages/mooncake"))
    for name in ("store.so", "engine.so"):
        (site / "mooncake" / name).symlink_to(theirs / name)
    for name in ("kvpool", "mooncake"):
        assert f"{site}/mooncake has files of Mooncake's wheel (engine.so)" in imported(site, name)
    assert "pip uninstall mooncake-transfer-engine" in found_by_doctor(site)["wheel_over_wheel"]
    shutil.copy(theirs / "__init__.py", site / "mooncake")
    assert "files of Mooncake's wheel" in imported(site, "kvpool")


def test_removal_of_mooncakes_wheel_takes_files_of_ours(site):
    (site / "mooncake/__init__.py").unlink()
    assert "lacks files of kvpool" in imported(site, "mooncake.store")
    assert "--force-reinstall" in found_by_doctor(site)["wheel_torn"]
