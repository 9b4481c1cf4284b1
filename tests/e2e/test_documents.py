# SPDX-License-Identifier: Apache-2.0
"""The fenced blocks of README.md and docs/operations/ do what a reader expects who pastes them.

The blocks of a page run in their order, by bash, in a network namespace of their own. So the pages may name fixed ports, and
10.0.0.1 is an address there. The programs are those that deploy/quickstart builds, and no others of the build folder.
A command that fails, and a curl that is answered 4xx or 5xx, fails its block. So does a program that a block starts in the
background and that does not become ready. A block that cannot run has the reason in a comment before its fence:
`<!-- not run: REASON -->`. Blocks that call the wheel's programs are for test_python_documents.py.
"""
import ast
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT, SLOW, _die_with_parent, clean_env, wait_until
from standby import ETCD

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "operations").glob("*.md"))]
NOT_RUN_MAX = 6
APART = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]

# Runs the blocks 1.sh, 2.sh, ... of its working directory, each by a shell of its own. What they start stays for the next.
RUN_BLOCKS = """
set -e
readlink /proc/self/ns/net >namespace
ip link set lo up
ip address add 10.0.0.1/32 dev lo
for ((n = 1; n <= $1; n++)); do
    echo "$n" >at
    bash -e "blocks/$n.sh" >"blocks/$n.out" 2>&1 </dev/null
done
echo done >at
"""

# After a block: each of the programs that it has started in the background must have printed its ready line.
SETTLE = """
SECONDS=0
until [ "$(grep -Eo '(^|})ready[: ]|ready [a-z]+=' "blocks/%d.out" | wc -l)" -ge %d ]; do
    [ "$SECONDS" -lt 20 ] || { echo "a program in the background did not become ready"; exit 1; }
    sleep 0.05
done
"""
BACKGROUND_RE = re.compile(r"[^&]& *(#.*|echo \$! >.*|NODE=\$!)?$", re.M)


class Block:
    """A fenced block: its text, the language that the fence names, and the last line of text before it."""

    def __init__(self, page, line, language, code, before):
        self.at, self.language, self.code, self.before = f"{page.relative_to(ROOT)}:{line}", language, code, before
        found = re.fullmatch(r"<!-- not run: (\S.*) -->", before)
        self.why_not_run = found.group(1) if found else ""

    def needs_wheel(self):
        return re.search(r"\bmooncake_(master|client)\b|python3? -m mooncake", self.code) is not None

    def script(self, number):
        """The commands by which the block runs, or "" for one that is only data."""
        if self.language == "sh":
            # One that the block ends itself may have no time to say that it is ready.
            started = len(BACKGROUND_RE.findall(self.code)) - self.code.count("kill $NODE")
            return self.code + SETTLE % (number, started)
        if self.language == "python":
            return f"'{sys.executable}' - <<'KVP_END'\n{self.code}KVP_END\n"
        if self.language == "ini":
            program = re.search(r"`/etc/kvpool/(kvpool-\w+)\.conf`", self.before).group(1)
            return (f"export XDG_RUNTIME_DIR=$(mktemp -d) XDG_STATE_HOME=$(mktemp -d)\n"
                    f"cat >{number}.conf <<'KVP_END'\n{self.code}KVP_END\n{program} --config {number}.conf &\n") + SETTLE % (number, 1)
        return ""


def blocks_of(page):
    found, before, begun = [], "", None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if begun is None and line.lstrip().startswith(("```", "~~~")):
            begun = Block(page, number, line.strip().lstrip("`~"), "", before)
        elif begun is not None and line.strip() in ("```", "~~~"):
            found.append(begun)
            begun, before = None, ""
        elif begun is not None:
            begun.code += line + "\n"
        elif line.strip():
            before = line.strip()
    assert begun is None, f"{begun.at}: the fence is not closed"
    return found


def built_by_quickstart():
    """The programs that deploy/quickstart builds, by name."""
    command = re.search(r"^kvp_build_make (.*)$", (ROOT / "deploy" / "quickstart").read_text(), re.M).group(1)
    return {pathlib.Path(word).name: BUILD / word for word in command.split() if re.fullmatch(r"\w+/[\w-]+", word)}


def end_namespace(name):
    """Kills every process that runs in the network namespace `name`."""
    def members():
        pids = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(entry / "ns" / "net") == name:
                    pids.append(int(entry.name))
            except OSError:  # it has ended, or belongs to another user
                continue
        return pids

    def none_is_left():
        for pid in members():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not members()

    assert name != os.readlink("/proc/self/ns/net")
    wait_until(none_is_left, 10, "the end of the block's processes")


def run_blocks(blocks, home, more_paths=()):
    """Runs blocks of one page in a folder that looks like the repository after deploy/quickstart. `more_paths` are for the PATH."""
    for tool in ("unshare", "ip", "curl"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")
    tried = subprocess.run([*APART, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no network namespaces: {tried.stderr.strip()}")
    # Copies: a program looks for others beside its own file, and must find only those that quickstart builds.
    paths = []
    for program in [*built_by_quickstart().values(), BUILD / "bin" / "libkvpool.so.0", BUILD / "common" / "libkvpool-tls.so"]:
        paths.append(home / "build" / program.parent.name)
        paths[-1].mkdir(parents=True, exist_ok=True)
        shutil.copy(program, paths[-1])
    (home / "blocks").mkdir()
    for name in ("README.md", "deploy", "docs"):
        (home / name).symlink_to(ROOT / name)
    (home / ".curlrc").write_text("fail\nsilent\nshow-error\nmax-time = 20\n")
    for number, block in enumerate(blocks, 1):
        (home / "blocks" / f"{number}.sh").write_text(block.script(number))
    # Keepers are wanted here, as a reader has them: they end with the namespace.
    env = clean_env(home, KVPOOL_BUILD=str(home / "build"), PATH=os.pathsep.join(map(str, [*paths, *more_paths, os.environ["PATH"]])))
    del env["KVPOOL_KEEPER"]
    runner = subprocess.Popen([*APART, "bash", "-c", RUN_BLOCKS, "blocks", str(len(blocks))], cwd=home, env=env,
                              stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    try:
        code = runner.wait(50 * SLOW)
    except subprocess.TimeoutExpired:
        code = "it did not end in time"
        runner.kill()
        runner.wait()
    finally:
        if (home / "namespace").exists():
            end_namespace((home / "namespace").read_text().strip())
    at = (home / "at").read_text().strip() if (home / "at").exists() else ""
    if at != "done":
        block = blocks[int(at) - 1] if at else None
        out = (home / "blocks" / f"{at}.out").read_text(errors="replace") if at else ""
        pytest.fail(f"{block.at if block else 'no block'} failed ({code}):\n{out[-3000:]}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(page, tmp_path):
    blocks = [b for b in blocks_of(page) if b.script(1) and not b.why_not_run and not b.needs_wheel()]
    if not blocks:
        return
    if ETCD is None and any("three-masters" in b.code for b in blocks):
        pytest.skip("no etcd here (Debian's etcd-server)")
    run_blocks(blocks, tmp_path)


def test_blocks_that_cannot_run_are_few():
    """Each block is of a kind that is checked, those that do not run included, and at most six do not run."""
    blocks = [block for page in PAGES for block in blocks_of(page)]
    assert len(blocks) > 10
    for block in blocks:
        assert block.language in ("sh", "python", "json", "ini", "c", "text"), f"{block.at}: write sh, python, json, ini, c or text behind the fence"
        if block.language == "sh":
            checked = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True, check=False)
            assert checked.returncode == 0, f"{block.at}: {checked.stderr}"
        elif block.language == "python":
            ast.parse(block.code, block.at)
        elif block.language == "json":
            json.loads(block.code)
    left_out = [f"{block.at}: {block.why_not_run}" for block in blocks if block.why_not_run]
    assert len(left_out) <= NOT_RUN_MAX, left_out


def test_quickstart_builds_all_programs():
    """deploy/quickstart builds every program that is installed."""
    targets = json.loads((BUILD / "meson-info" / "intro-targets.json").read_text())
    installed = {target["name"] for target in targets if target["type"] == "executable" and target["installed"]}
    assert installed == set(built_by_quickstart())
