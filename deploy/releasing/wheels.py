# SPDX-License-Identifier: Apache-2.0
"""Wheels from a finished release: its programs and library, the Python files of python/, and the extension, which is all that is
compiled here. Wheels have no links, so the library has the one name under which the programs look for it."""
import base64
import hashlib
import time
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from releasing import papers
from releasing.toolchain import CURL, TLS, Failed, Target, Toolchain

SIZE_MAX = 6 << 20


@dataclass(frozen=True)
class Kind:
    tag: str
    python: str  # the version whose headers are used
    suffix: str  # of the extension's file
    requires: str
    flags: "tuple[str, ...]" = ()


def kinds_for(target: Target) -> "list[Kind]":
    kinds = [Kind("cp311-abi3", "3.11", "abi3.so", ">=3.11", ("-DPy_LIMITED_API=0x030b0000",))]  # serves all later versions, too
    if target.arch == "x86-64":
        kinds.append(Kind("cp39-cp39", "3.9", f"cpython-39-{target.triple}.so", "==3.9.*"))  # Debian 11
    return kinds


def compile_extension(tools: Toolchain, tree: Path, stage: Path, kind: Kind, headers: Path) -> Path:
    """tree: kvpool's sources. headers: the unpacked package with Python's headers."""
    tools.begin(f"extension-{kind.tag}")
    folder = tools.work / f"extension-{kind.tag}"
    folder.mkdir(exist_ok=True)
    (folder / "crypt.h").touch()  # Python 3.9 includes it, and uses nothing of it
    flags = ["-std=gnu11", "-O3", "-fPIC", "-D_GNU_SOURCE", "-fvisibility=hidden", f"-I{tree}",
             f"-I{headers}/usr/include/python{kind.python}", f"-I{headers}/usr/include", f"-I{folder}",
             *kind.flags]
    sources = sorted((tree / "python/src").glob("*.c"))
    for source in sources:
        tools.run("kvp-cc", *flags, "-c", source, "-o", folder / f"{source.stem}.o")
    out = folder / f"_kvpool.{kind.suffix}"
    tools.run("kvp-cc", "-shared", "-s", *(folder / f"{source.stem}.o" for source in sources), stage / "lib/libkvpool.so.0",
              "-Wl,-rpath,$ORIGIN/lib", "-o", out)
    tools.end()
    return out


def describe(tree: Path, version: str, kind: Kind) -> "dict[str, str]":
    """What pip reads, from python/pyproject.toml: file name and text."""
    project = tomllib.loads((tree / "python/pyproject.toml").read_text())["project"]
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {version}", f"Summary: {project['description']}",
             f"License-Expression: {project['license']['text']}", "License-File: LICENSE", "License-File: NOTICES",
             f"Requires-Python: {kind.requires}", *(f"Classifier: {c}" for c in project["classifiers"]),
             "Description-Content-Type: text/markdown", "", papers.LINK.sub(r"\1", (tree / "python" / project["readme"]).read_text())]
    scripts = (f"{name} = {place}\n" for name, place in sorted(project["scripts"].items()))
    return {"METADATA": "\n".join(lines), "entry_points.txt": "".join(["[console_scripts]\n", *scripts])}


def files_of(tree: Path, stage: Path, extension: Path, version: str, kind: Kind, platform: str) -> "dict[str, bytes]":
    """Name in the wheel: content."""
    paths = {f"{path.relative_to(tree / 'python')}": path for package in ("kvpool", "mooncake")
             for path in sorted((tree / "python" / package).rglob("*")) if path.is_file() and "__pycache__" not in path.parts}
    paths |= {f"kvpool/{path.relative_to(stage)}": path for folder in ("bin", "include") for path in sorted((stage / folder).rglob("*"))
              if path.is_file()}
    paths |= {f"kvpool/{extension.name}": extension, **{f"kvpool/lib/{name}": stage / "lib" / name for name in ("libkvpool.so.0", TLS, CURL)}}
    info = f"kvpool-{version}.dist-info"
    paths |= {f"{info}/licenses/LICENSE": stage / "LICENSE", f"{info}/licenses/NOTICES": stage / "NOTICES",
              f"{info}/sboms/kvpool.spdx.json": stage / "components.spdx.json"}
    files = {name: path.read_bytes() for name, path in paths.items()}
    files |= {f"{info}/{name}": text.encode() for name, text in describe(tree, version, kind).items()}
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: deploy/release\nRoot-Is-Purelib: false\n"
                              f"Tag: {kind.tag}-{platform}\n").encode()
    rows = [f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}\n"
            for name, content in files.items()]
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    return files


def write_wheel(path: Path, files: "dict[str, bytes]", epoch: int) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, time.gmtime(epoch)[:6])
            entry.external_attr = (0o100755 if "/bin/" in name or ".so" in name else 0o100644) << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)
    if path.stat().st_size > SIZE_MAX:
        raise Failed(f"{path.name} has {path.stat().st_size} bytes, more than {SIZE_MAX}")


def make_wheels(tools: Toolchain, tree: Path, stage: Path, version: str, sources: "dict[str, Path]", out: Path, epoch: int) -> "list[Path]":
    """sources: the unpacked archives. Returns the wheels that it has written into out."""
    platform = f"manylinux_2_28_{tools.target.machine}"
    made = []
    for kind in kinds_for(tools.target):
        extension = compile_extension(tools, tree, stage, kind, sources[f"python{kind.python}-{tools.target.arch}"])
        made.append(out / f"kvpool-{version}-{kind.tag}-{platform}.whl")
        write_wheel(made[-1], files_of(tree, stage, extension, version, kind, platform), epoch)
    return made
