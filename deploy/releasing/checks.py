# SPDX-License-Identifier: Apache-2.0
"""What a finished release is held against. Each check returns a list of complaints, which is empty for a good release."""
import re
import subprocess
from collections import defaultdict
from pathlib import Path

from releasing.toolchain import CURL, GLIBC, TLS, Target

# The functions of libraries that are linked in.
PRIVATE = re.compile(r"^_?(curl|Curl|SSL|TLS|CRYPTO|EVP|OPENSSL|BIO|X509|zmq|uv|json|MHD|pcre2|msgpack|protobuf_c|io_uring)_")


def readelf(path: Path, *options: str) -> str:
    return subprocess.run(["readelf", "-W", *options, path], capture_output=True, text=True, check=True).stdout


def check_needs(path: Path, target: Target) -> "list[str]":
    """A program may need five libraries, which every host has, and our own three."""
    allowed = {"libc.so.6", "libpthread.so.0", "libdl.so.2", "libm.so.6", target.loader, "libkvpool.so.0", TLS, CURL}
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf(path, "-d")))
    return [f"{path.name} needs {name}, which hosts may lack" for name in sorted(needed - allowed)]


def check_glibc(path: Path) -> "list[str]":
    def numbers(version: str) -> "list[int]":
        return [int(number) for number in version.split(".")]

    wanted = set(re.findall(r"GLIBC_([0-9.]+)", readelf(path, "-V")))
    return [f"{path.name} wants GLIBC_{v}, which is newer than {GLIBC}" for v in sorted(wanted) if numbers(v) > numbers(GLIBC)]


def check_machine(path: Path, target: Target) -> "list[str]":
    wanted = {"x86-64": "X86-64", "aarch64": "AArch64"}[target.arch]
    return [] if wanted in readelf(path, "-h") else [f"{path.name} is not for {target.arch}"]


def check_address(path: Path) -> "list[str]":
    """Zig's programs have a fixed address unless they are told otherwise. An attacker then knows where their code is."""
    return [] if re.search(r"Type:\s+DYN", readelf(path, "-h")) else [f"{path.name} is loaded at a fixed address (no PIE)"]


def symbols(path: Path) -> "list[tuple[str, bool]]":
    """The name of each dynamic symbol, and whether the file defines it."""
    rows = (line.split() for line in readelf(path, "--dyn-syms").splitlines())
    return [(row[7].split("@")[0], row[6] != "UND") for row in rows if len(row) >= 8 and row[0][:-1].isdigit()]


def check_assertions(path: Path) -> "list[str]":
    """Code with assertions imports the function that reports a failed one."""
    # No code that asserts is linked into these.
    return [] if path.name in ("kvpool-keeper", TLS, CURL) or ("__assert_fail", False) in symbols(path) else [f"{path.name} was compiled without assertions (NDEBUG)"]


def check_loaded(path: Path) -> "list[str]":
    """These libraries are loaded at run time, where they are there. A build that does not find their headers leaves the code out."""
    if path.name != "kvpool-node" and not path.name.startswith("libkvpool.so"):
        return []
    # Only clients look at a GPU's memory.
    names = ["libibverbs.so.1", "librdmacm.so.1", *(["libcuda.so.1"] if path.name != "kvpool-node" else [])]
    content = path.read_bytes()
    return [f"{path.name} does not load {name}" for name in names if name.encode() not in content]


def check_hidden(path: Path) -> "list[str]":
    """A function that can be seen from outside may take the place of another one of that name in the process."""
    shown = sorted(name for name, is_defined in symbols(path) if is_defined and PRIVATE.match(name) and
                   not (path.name == CURL and name.startswith("curl_")))
    return [f"{path.name} shows {len(shown)} functions of the libraries in it, such as {shown[0]}"] if shown else []


def check_folders(path: Path, folders: "list[Path]") -> "list[str]":
    content = path.read_bytes()
    return [f"{path.name} contains the name of the folder {folder}" for folder in folders if str(folder).encode() in content]


def calls(log: Path) -> "list[list[str]]":
    """The calls of the compiler: step, cache, folder and words of each."""
    return [line.split("\t") for line in log.read_text(errors="replace").splitlines() if line.count("\t") == 3]


def check_caches(log: Path) -> "list[str]":
    """Zig takes the files of a library for those of another one, or of another configuration, that has used the same cache."""
    users = defaultdict(set)
    for step, cache, _, _ in calls(log):
        users[cache].add(step)
    return [f"{' and '.join(sorted(steps))} used one compiler cache: {cache}" for cache, steps in sorted(users.items()) if len(steps) > 1]


def check_links(log: Path, work: Path) -> "list[str]":
    """No library of the build machine, and no folder with some, is on a command line."""
    complaints = set()
    for step, _, folder, words in calls(log):
        for word in words.split():
            name = word.removeprefix("-L")
            if word.startswith("-L") or not word.startswith("-") and re.search(r"\.(a|so)(\.\d+)*$", word):
                if not (Path(folder) / name).resolve().is_relative_to(work.resolve()):
                    complaints.add(f"{step} links {name} of the build machine")
    return sorted(complaints)


def check_release(stage: Path, target: Target, work: Path, log: Path, others: "list[Path]") -> "list[str]":
    """stage: the folder with the release's files. others: folders whose names must not be in them, besides work."""
    complaints = check_caches(log) + check_links(log, work)
    for path in sorted(path for path in stage.rglob("*") if path.is_file() and not path.is_symlink()):
        if path.open("rb").read(4) == b"\x7fELF":
            complaints += check_machine(path, target) + check_address(path) + check_needs(path, target) + check_glibc(path) + check_assertions(path)
            complaints += check_loaded(path) + check_hidden(path) + check_folders(path, [work, *others])
    return complaints
