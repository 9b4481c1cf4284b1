#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""embed.py PAGE STYLE SCRIPT OUT: writes OUT, a C file with the page kvp_page of common/daemon/page.h.

The page has one <style> and one <script>. STYLE and SCRIPT, which all pages share, go before what the page has there.
"""
import base64
import hashlib
import pathlib
import re
import sys

page, style, script = (pathlib.Path(path).read_text(encoding="utf-8") for path in sys.argv[1:4])
hashes = {}
for tag, shared in (("style", style), ("script", script)):
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
    assert len(found) == 1 == page.count(f"<{tag}"), f"the page needs one <{tag}> without attributes"
    text = "\n" + shared + found[0]
    assert f"</{tag}" not in text, f"no </{tag} inside"
    page = page.replace(f"<{tag}>{found[0]}</{tag}>", f"<{tag}>{text}</{tag}>")
    hashes[tag] = "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
data = page.encode()
rows = (",".join(str(b) for b in data[i:i + 32]) for i in range(0, len(data), 32))
pathlib.Path(sys.argv[4]).write_text(
    '#include "common/daemon/page.h"\n\nstatic const unsigned char html[] = {\n' + ",\n".join(rows) + "};\n"
    + f'const kvp_page_t kvp_page = {{.html = html, .len = sizeof html, .script = "{hashes["script"]}", .style = "{hashes["style"]}"}};\n')
