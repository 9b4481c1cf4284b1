# SPDX-License-Identifier: Apache-2.0
"""The blocks of README.md and docs/operations/ that call programs of the wheel: see test_documents.py."""
import pathlib
import sys

from test_documents import PAGES, blocks_of, run_blocks


def test_blocks_of_the_wheel(tmp_path):
    blocks = [b for page in PAGES for b in blocks_of(page) if b.needs_wheel() and b.script(1) and not b.why_not_run]
    assert blocks
    run_blocks(blocks, tmp_path, [pathlib.Path(sys.executable).parent])
