# SPDX-License-Identifier: Apache-2.0
"""Finds another wheel's files in the package `mooncake` of this one. Both wheels install that package, so the later one lies over the
earlier, and an extension (store.so) comes before a module of the same name (store.py)."""
import os


def find_other(site: str) -> "str | None":
    """Returns a sentence about the folder `site/mooncake`, or None if it is this wheel's alone or not there at all."""
    folder = os.path.join(site, "mooncake")
    try:
        names = set(os.listdir(folder))
    except OSError:
        return None
    if foreign := sorted(name for name in names if name.endswith(".so")):
        return (f"{folder} has files of Mooncake's wheel ({foreign[0]}), so programs that import mooncake may not use kvpool: "
                "pip uninstall mooncake-transfer-engine (or the name of its variant), then pip install --force-reinstall --no-deps kvpool")
    if "__init__.py" not in names:
        return f"{folder} lacks files of kvpool, as after the removal of Mooncake's wheel: pip install --force-reinstall --no-deps kvpool"
    return None
