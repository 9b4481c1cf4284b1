#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the folders of a component to their order: a file includes and calls only what lies in its own folder or below.

Calls are read from the built objects with nm, so that macros and function pointers count: whoever takes the address of a
function above calls upwards. Inline functions count by the direction of includes. Cycles inside one folder may have three
files at most. What is against the order and known stands in tests/layers.allow, one edge a line; a line there that nothing
needs any more is a failure too, so that the list only shrinks.

  tests/layers.py [--build DIR] [--graph] [COMPONENT...]

--graph prints, for each folder, whom it calls and how often, then the cycles. Exit 1: something is against the order.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CYCLE_MAX = 3

# order: folders from the lowest to the highest; "" is the component's own folder. at: files that count as of another
# folder than the one they lie in. objects: the directory of the objects below the build. context: the type that only the
# highest folders should know; how many functions take it is printed.
COMPONENTS = {
    "master/core": {
        "order": ["base", "log", "catalog", "session", "protect", "space", "put", "evict", "recovery", "request", ""],
        "at": {"master.h": "base", "state.h": "recovery"},
        "objects": "master/libkvp_master_core.a.p",
        "context": "kvp_master_t",
    },
}


class Component:
    def __init__(self, root, conf, build):
        self.root = root
        self.conf = conf
        self.build = build
        self.files = sorted(
            os.path.relpath(os.path.join(d, f), os.path.join(ROOT, root))
            for d, _, names in os.walk(os.path.join(ROOT, root))
            for f in names
            if f.endswith((".c", ".h"))
        )
        self.faults = []

    def folder(self, file):
        return self.conf["at"].get(file, os.path.dirname(file))

    def level(self, file):
        return self.conf["order"].index(self.folder(file))

    def text(self, file):
        with open(os.path.join(ROOT, self.root, file), encoding="utf-8") as f:
            return f.read()

    def check_folders(self):
        for file in self.files:
            if self.folder(file) not in self.conf["order"]:
                self.faults.append(f"{self.root}/{file}: its folder is not in the order")
        self.files = [f for f in self.files if self.folder(f) in self.conf["order"]]

    def includes(self):
        """{(file, included file)} inside the component."""
        found = set()
        for file in self.files:
            for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', self.text(file), re.M):
                if name.startswith(self.root + "/"):
                    found.add((file, os.path.relpath(name, self.root)))
        return found

    def objects(self):
        """{source: object} of what was built."""
        with open(os.path.join(self.build, "compile_commands.json"), encoding="utf-8") as f:
            commands = json.load(f)
        found = {}
        for c in commands:
            out = os.path.join(self.build, c["output"])
            src = os.path.relpath(os.path.join(c["directory"], c["file"]), os.path.join(ROOT, self.root))
            if c["output"].startswith(self.conf["objects"]) and not src.startswith(".."):
                found[src] = out
        return found

    def calls(self):
        """{(file, file): [symbols]}: from the objects."""
        objects = self.objects()
        defined, wanted = {}, {}
        for src in [f for f in self.files if f.endswith(".c")]:
            if src not in objects or not os.path.exists(objects[src]):
                self.faults.append(f"{self.root}/{src}: not built in {self.build}")
                continue
            if os.path.getmtime(objects[src]) < os.path.getmtime(os.path.join(ROOT, self.root, src)):
                self.faults.append(f"{self.root}/{src}: newer than its object in {self.build}")
            wanted[src] = set()
            for line in subprocess.check_output(["nm", objects[src]], text=True).splitlines():
                words = line.split()
                if words[-2] == "U":
                    wanted[src].add(words[-1])
                elif words[-2] in "TDBRVW":
                    defined[words[-1]] = src
        edges = collections.defaultdict(list)
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


def read_allowed(path):
    """[(line number, words)] of tests/layers.allow."""
    out = []
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            words = line.split("#")[0].split()
            if words:
                out.append((number, tuple(words)))
    return out


class Allowed:
    """call FILE FILE | include FILE FILE | file FILE (all its edges) | cycle FILE... (all of one cycle)"""

    def __init__(self, path, roots):
        self.lines = [
            (n, w) for n, w in read_allowed(path) if any(all(f.startswith(r + "/") for f in w[1:]) for r in roots)
        ]
        self.used = set()

    def has(self, *words):
        for number, line in self.lines:
            is_file = line[0] == "file" and line[1] in words[1:]
            if line == words or is_file:
                self.used.add(number)
                return True
        return False

    def unused(self):
        return [f"tests/layers.allow:{n}: nothing needs '{' '.join(w)}'" for n, w in self.lines if n not in self.used]


def check(comp, allowed, is_graph):
    comp.check_folders()
    includes, calls = comp.includes(), comp.calls()
    up_calls = up_includes = known = 0
    at = lambda f: f"{comp.root}/{f}"  # noqa: E731
    for (a, b), symbols in sorted(calls.items()):
        if comp.level(b) <= comp.level(a):
            continue
        up_calls += 1
        if allowed.has("call", at(a), at(b)):
            known += 1
        else:
            comp.faults.append(f"{at(a)}: calls up into {b}: {' '.join(symbols)}")
    for a, b in sorted(includes):
        if b not in comp.files:
            comp.faults.append(f"{at(a)}: includes {b}, which is not there")
        elif comp.level(b) > comp.level(a):
            up_includes += 1
            if allowed.has("include", at(a), at(b)):
                known += 1
            else:
                comp.faults.append(f"{at(a)}: includes {b}, which is above")
    rings = []
    for folder in comp.conf["order"]:
        inside = [f for f in comp.files if comp.folder(f) == folder]
        rings += cycles(inside, [(a, b) for a, b in calls if comp.folder(a) == folder == comp.folder(b)])
    for ring in rings:
        if len(ring) > CYCLE_MAX and not allowed.has("cycle", *map(at, ring)):
            comp.faults.append(f"{comp.root}: a cycle of {len(ring)} files: {' '.join(ring)}")
    if is_graph:
        graph(comp, calls)
        for ring in rings:
            print(f"  cycle of {len(ring)}: {' '.join(ring)}")
    of_context = ""
    if "context" in comp.conf:
        n = sum(len(re.findall(rf"\b{comp.conf['context']} \*\w+[,)]", comp.text(f))) for f in comp.files if f.endswith(".c"))
        of_context = f", {n} parameters of {comp.conf['context']}"
    print(
        f"{comp.root}: {len(calls)} edges between files, {up_calls} calls and {up_includes} includes go up "
        f"({known} allowed by name), {len(rings)} cycles inside folders{of_context}"
    )


def graph(comp, calls):
    count = collections.Counter()
    for (a, b), symbols in calls.items():
        count[comp.folder(a), comp.folder(b)] += len(symbols)
    for folder in comp.conf["order"]:
        to = [
            f"{b or '.'} {n}{' (up)' if comp.conf['order'].index(b) > comp.conf['order'].index(a) else ''}"
            for (a, b), n in sorted(count.items(), key=lambda e: comp.conf["order"].index(e[0][1]))
            if a == folder and b != folder
        ]
        print(f"  {comp.root}/{folder or '.'} -> {', '.join(to) or 'nothing'}")


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--build", default=os.environ.get("KVPOOL_BUILD", os.path.join(ROOT, "build")))
    args.add_argument("--graph", action="store_true")
    args.add_argument("components", nargs="*", metavar="COMPONENT")
    opts = args.parse_args()
    roots = opts.components or list(COMPONENTS)
    allowed = Allowed(os.path.join(ROOT, "tests/layers.allow"), roots)
    faults = []
    for root in roots:
        comp = Component(root, COMPONENTS[root], os.path.abspath(opts.build))
        check(comp, allowed, opts.graph)
        faults += comp.faults
    faults += allowed.unused()
    for f in faults:
        print(f)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
