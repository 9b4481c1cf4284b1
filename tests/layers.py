#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the folders to their order: a file includes and calls only what lies in its own folder or below.

Calls are read from the built objects with nm, so that macros and function pointers count: a file that takes the address
of a function above calls upwards. Functions of the installed headers (kvpool_*) count as of the folder of these headers,
inline functions by the direction of includes. Calls between the files of one folder may form cycles of three files at
most.

  tests/layers.py [--build DIR] [--graph] [--includes]

--includes leaves out the calls, for a tree that is not built. --graph prints, for each folder, the folders that it calls
and how often, then the cycles. Exit 1: a file is against the order, a folder is not in it, or an object is missing or
older than its source.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Folders from the lowest to the highest. A file of a chain uses only folders of its chain.
BASE = "common common/trust common/daemon proto".split()
CORE = "api base log catalog session protect space put evict recovery request".split()
CHAINS = {
    "the client": BASE
    + """net
    transport/gpu transport transport/tcp transport/shm
    transport/rdma/verbs transport/rdma/base transport/rdma/ask transport/rdma/serve transport/rdma transport/all
    node/core node/memory node/tier node/keeper node
    client client/core client/memory client/cache client/control client/data client/api
    node/daemon
    p2p/base p2p/ask p2p/serve p2p""".split(),
    "the tools": BASE + "client tools/base tools/bench tools/doctor tools/replay tools/top tools/verbs tools".split(),
    "the wheel": ["client", "python/src"],
    "the master": BASE
    + ["master/core/base", "master/core/api"]
    + [f"master/core/{f}" for f in CORE if f not in ("api", "base")]
    + "master/core master/events master/shell master/ha master".split(),
    "the conductor": BASE
    + """conductor/base conductor/index conductor/pool conductor/events conductor/router conductor/proxy
    conductor""".split(),
}


def sources():
    """All C files of the components."""
    roots = {folder.split("/")[0] for chain in CHAINS.values() for folder in chain}
    walks = [w for root in roots for w in os.walk(os.path.join(ROOT, root))]
    files = [os.path.relpath(os.path.join(d, f), ROOT) for d, _, names in walks for f in names if f.endswith((".c", ".h"))]
    return sorted(f for f in files if "/build/" not in f)


def includes(files):
    """{(file, included file)}"""
    known, found = set(files), set()
    for file in files:
        with open(os.path.join(ROOT, file), encoding="utf-8") as f:
            for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', f.read(), re.M):
                if name in known:
                    found.add((file, name))
    return found


def objects(build):
    """{source: object}. A source that is built several times counts once."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        commands = json.load(f)
    found = {}
    for c in commands:
        src = os.path.relpath(os.path.join(c["directory"], c["file"]), ROOT)
        if src not in found or not os.path.exists(found[src]):
            found[src] = os.path.join(build, c["output"])
    return found


def calls(files, build, faults):
    """{(file, file): [symbols]} of the objects."""
    built = objects(build)
    defined, wanted, edges = {}, {}, collections.defaultdict(list)
    for src in [f for f in files if f in built]:
        if not os.path.exists(built[src]):
            faults.append(f"{src}: not built in {build}")
            continue
        if os.path.getmtime(built[src]) < os.path.getmtime(os.path.join(ROOT, src)):
            faults.append(f"{src}: newer than its object in {build}")
        wanted[src] = set()
        for line in subprocess.check_output(["nm", built[src]], text=True).splitlines():
            words = line.split()
            if words[-2] == "U":
                wanted[src].add(words[-1])
            elif words[-2] in "TDBRVW" and words[-1] != "main":
                defined[words[-1]] = src
    for src, symbols in wanted.items():
        for s in sorted(symbols):
            if defined.get(s, src) != src:
                edges[src, defined[s]].append(s)
    return edges


def cycles(nodes, edges):
    """Strongly connected components of more than one node (Tarjan)."""
    after = collections.defaultdict(list)
    for a, b in edges:
        after[a].append(b)
    index, low, stack, found = {}, {}, [], []

    def visit(n):
        index[n] = low[n] = len(index)
        stack.append(n)
        for t in after[n]:
            if t not in index:
                visit(t)
                low[n] = min(low[n], low[t])
            elif t in stack:
                low[n] = min(low[n], index[t])
        if low[n] == index[n]:
            part = []
            while not part or part[-1] != n:
                part.append(stack.pop())
            if len(part) > 1:
                found.append(sorted(part))

    for n in sorted(nodes):
        if n not in index:
            visit(n)
    return found


def is_below(a, b):
    """A chain has both folders, b not above a."""
    return any(a in c and b in c and c.index(b) <= c.index(a) for c in CHAINS.values())


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--build", default=os.environ.get("KVPOOL_BUILD", os.path.join(ROOT, "build")))
    args.add_argument("--graph", action="store_true")
    args.add_argument("--includes", action="store_true")
    opts = args.parse_args()
    known, files = {folder for chain in CHAINS.values() for folder in chain}, sources()
    faults = [f"{f}: its folder is not in the order" for f in files if os.path.dirname(f) not in known]
    files = [f for f in files if os.path.dirname(f) in known]
    called, included = {} if opts.includes else calls(files, os.path.abspath(opts.build), faults), includes(files)
    for (a, b), symbols in sorted(called.items()):
        to = "client" if all(s.startswith("kvpool_") for s in symbols) else os.path.dirname(b)
        if not is_below(os.path.dirname(a), to):
            faults.append(f"{a}: calls up into {b}: {' '.join(symbols)}")
    for a, b in sorted(included):
        if not is_below(os.path.dirname(a), os.path.dirname(b)):
            faults.append(f"{a}: includes {b}, which is above")
    inside = [(a, b) for a, b in called if os.path.dirname(a) == os.path.dirname(b)]
    rings = cycles(files, inside)
    faults += [f"a cycle of {len(r)} files: {' '.join(r)}" for r in rings if len(r) > 3]
    if opts.graph:
        count = collections.Counter()
        for (a, b), symbols in called.items():
            count[os.path.dirname(a), os.path.dirname(b)] += len(symbols)
        for folder in sorted(known):
            to = [f"{b} {n}" for (a, b), n in sorted(count.items()) if a == folder != b]
            print(f"{folder} -> {', '.join(to) or 'nothing'}")
        for ring in rings:
            print(f"cycle of {len(ring)}: {' '.join(ring)}")
    for f in faults:
        print(f)
    print(
        f"{len(known)} folders: {len(called)} edges of calls and {len(included)} includes, {len(faults)} against the order, "
        f"{len(rings)} cycles inside folders"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
