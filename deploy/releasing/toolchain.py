# SPDX-License-Identifier: Apache-2.0
"""Zig's C compiler for one processor, as programs that configure scripts can call, and the running of one step of a build.

Three habits of zig need care. Its cache takes two files for one if their names and arguments are equal, although the folder differs:
every step has a cache of its own, which begins empty. It defines NDEBUG and keeps frame pointers when it optimises: the wrapper undoes
both, before the arguments of the caller, so that a library that asks for NDEBUG itself has it. And it names the build machine's folders
when asked where it searches: the wrapper answers with its own folder alone, or meson would link the machine's static libraries."""
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

TLS = "libkvpool-tls.so"  # TLS and tokens, with OpenSSL
CURL = "libkvpool-curl.so.0"  # libcurl and TLS, which the programs and libkvpool share
GLIBC = "2.28"  # the oldest C library that the programs run with


class Failed(Exception):
    """A step failed; the text ends with the last lines of its log."""


@dataclass(frozen=True)
class Target:
    arch: str  # as deploy/release calls it, and in file names
    triple: str  # as configure scripts and zig call it
    cpu: str  # zig's name of the oldest processor
    machine: str  # as the kernel, Python and wheels call it
    openssl: str  # OpenSSL's name of it
    lg_page: int  # log2 of the largest page of memory that the allocator has to work with
    loader: str


TARGETS = {t.arch: t for t in (
    Target("x86-64", "x86_64-linux-gnu", "x86_64_v2", "x86_64", "linux-x86_64", 12, "ld-linux-x86-64.so.2"),
    Target("aarch64", "aarch64-linux-gnu", "generic", "aarch64", "linux-aarch64", 16, "ld-linux-aarch64.so.1"),
)}

COMPILER = """#!/bin/sh
# {compiler} for {target.triple} and glibc {glibc}.
triple={target.triple}.{glibc}
for word in "$@"; do
    case $word in
    -print-search-dirs | --print-search-dirs) echo "libraries: ={prefix}/lib"; exit ;;
    -E) triple={target.triple} ;; # the preprocessor alone does not accept a version of glibc
    esac
done
printf '%s\\t%s\\t%s\\t%s\\n' "$KVP_STEP" "$ZIG_LOCAL_CACHE_DIR" "$PWD" "$*" >>{log}
exec {zig} {compiler} -target $triple -mcpu={target.cpu} -O2 -fno-sanitize=undefined -UNDEBUG -fomit-frame-pointer \\
    -ffunction-sections -fdata-sections -ffile-prefix-map={work}=. "$@" -g0
"""


class Toolchain:
    """work: an empty folder for everything that this build writes. log: each call of the compiler is a line in it: the step, its
    cache, the folder and the arguments."""

    def __init__(self, target: Target, zig: Path, meson: Path, work: Path, jobs: int, epoch: int):
        self.target, self.work, self.jobs = target, work, jobs
        self.prefix, self.bin, self.log = work / "prefix", work / "bin", work / "commands.log"
        self.meson = ["python3", "-m", "mesonbuild.mesonmain"]
        self.environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(work), "LC_ALL": "C", "TZ": "UTC",
            "PKG_CONFIG_LIBDIR": f"{self.prefix}/lib/pkgconfig", "PKG_CONFIG_PATH": "", "SOURCE_DATE_EPOCH": str(epoch),
            "PYTHONPATH": str(meson), "PYTHONDONTWRITEBYTECODE": "1",
            # Zig's own start files and C++ library for this target, and no code of a step.
            "ZIG_GLOBAL_CACHE_DIR": str(work / "cache" / "zig"),
        }
        for folder in (self.bin, self.prefix / "lib" / "pkgconfig", self.prefix / "include", work / "logs", work / "done"):
            folder.mkdir(parents=True, exist_ok=True)
        for name, compiler in (("kvp-cc", "cc"), ("kvp-c++", "c++")):
            self.write_program(name, COMPILER.format(compiler=compiler, target=target, glibc=GLIBC, prefix=self.prefix, log=self.log,
                                                     zig=zig, work=work))
        for name in ("ar", "ranlib"):
            self.write_program(f"kvp-{name}", f'#!/bin/sh\nexec {zig} {name} "$@"\n')

    def write_program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def begin(self, step: str) -> None:
        """Begins a step: what is run from now on has a compiler cache of its own, which is empty."""
        cache = self.work / "cache" / step
        shutil.rmtree(cache, ignore_errors=True)
        self.environment |= {"KVP_STEP": step, "ZIG_LOCAL_CACHE_DIR": str(cache)}

    def end(self) -> None:
        """Ends a step: it is not done again in this folder (--work), and its cache goes."""
        step = self.environment["KVP_STEP"]
        (self.work / "done" / step).touch()
        shutil.rmtree(self.work / "cache" / step)

    def run(self, *words: "str | Path", folder: "Path | None" = None) -> None:
        log = self.work / "logs" / f"{self.environment['KVP_STEP']}.log"
        with log.open("a") as out:
            print("+", *words, file=out, flush=True)
            done = subprocess.run([str(word) for word in words], cwd=folder or self.work, env=self.environment, stdin=subprocess.DEVNULL,
                                  stdout=out, stderr=out, check=False)
        if done.returncode != 0:
            tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-30:])
            raise Failed(f"{self.environment['KVP_STEP']}: {words[0]} failed; the end of {log}:\n  {tail}")
