# SPDX-License-Identifier: Apache-2.0
"""The programs in the wheel, as console scripts: each becomes the program, so signals and exit codes are its own."""
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "bin"


def _become(name: str) -> None:
    path = FOLDER / name
    try:
        os.execv(path, [str(path), *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"{name}: {path}: {e.strerror}")


def kvpool() -> None:
    _become("kvpool")


def kvpool_keeper() -> None:
    _become("kvpool-keeper")


def kvpool_master() -> None:
    _become("kvpool-master")


def kvpool_node() -> None:
    _become("kvpool-node")
