# SPDX-License-Identifier: Apache-2.0
"""The programs in the wheel, as console scripts: each becomes the program, so signals and exit codes are its own."""
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "bin"


def become(name: str, arguments: "list[str] | None" = None) -> None:
    """arguments: this process's own if None."""
    path = FOLDER / name
    try:
        os.execv(path, [str(path), *(sys.argv[1:] if arguments is None else arguments)])
    except OSError as e:
        sys.exit(f"{name}: {path}: {e.strerror}")


def kvpool() -> None:
    become("kvpool")


def kvpool_conductor() -> None:
    become("kvpool-conductor")


def kvpool_keeper() -> None:
    become("kvpool-keeper")


def kvpool_master() -> None:
    become("kvpool-master")


def kvpool_node() -> None:
    become("kvpool-node")
