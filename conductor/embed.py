#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""embed.py FILE NAME OUT: writes OUT, a C file that has the bytes of FILE as an array NAME, and how many they are as NAME_len."""
import pathlib
import sys

data = pathlib.Path(sys.argv[1]).read_bytes()
rows = (",".join(str(b) for b in data[i:i + 32]) for i in range(0, len(data), 32))
pathlib.Path(sys.argv[3]).write_text(
    f'#include "conductor/page.h"\n\nconst unsigned char {sys.argv[2]}[] = {{\n' + ",\n".join(rows) + f"}};\nconst size_t {sys.argv[2]}_len = {len(data)};\n")
