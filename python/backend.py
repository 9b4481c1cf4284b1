# SPDX-License-Identifier: Apache-2.0
"""meson-python, with the tree above as a subproject of this folder. Meson looks for subprojects in one place alone, so there has to
be a link; it is made here, since a loop in the repository would trap whoever walks it."""
from pathlib import Path

from mesonpy import *  # noqa: F401,F403: the hooks of a build backend

_link = Path(__file__).parent / "subprojects" / "kvpool"
_link.parent.mkdir(exist_ok=True)
if not _link.is_symlink():
    _link.symlink_to("../..", target_is_directory=True)
