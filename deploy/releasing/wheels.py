# SPDX-License-Identifier: Apache-2.0
"""Wheels from a finished release: its programs and library, the Python files of python/, and the extension, which is all that is
compiled here. Wheels have no links, so the library has the one name under which the programs look for it."""
import base64
import csv
import hashlib
import io
import time
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from releasing.toolchain import Target, Toolchain

SIZE_MAX = 6 << 20
# Whether python/src keeps to the limited API of 3.11, so that one extension serves that Python and all later ones.
IS_LIMITED = False


@dataclass(frozen=True)
class Kind:
    tag: str
    headers: str  # the archive of deploy/release.lock with Python's headers
    version: str
    suffix: str  # of the extension's file
    flags: "tuple[str, ...]" = ()
    requires: str = ""  # the Pythons, where they are fewer than pyproject.toml has


def kinds_for(target: Target) -> "list[Kind]":
    flags, abi = (("-DPy_LIMITED_API=0x030b0000",), "abi3") if IS_LIMITED else ((), f"cpython-311-{target.triple}")
    kinds = [Kind("cp311-abi3" if IS_LIMITED else "cp311-cp311", f"python3.11-{target.arch}", "3.11", f"{abi}.so", flags, ">=3.11")]
    if target.arch == "x86-64":
        kinds.append(Kind("cp39-cp39", "python3.9-x86-64", "3.9", f"cpython-39-{target.triple}.so"))
    return kinds


def compile_extension(tools: Toolchain, tree: Path, stage: Path, kind: Kind, headers: Path) -> Path:
    """tree: the sources. headers: the unpacked package with Python's headers."""
    tools.begin(f"extension-{kind.tag}")
    folder = tools.work / f"extension-{kind.tag}"
    folder.mkdir(exist_ok=True)
    include = headers / "usr/include"
    flags = ["-std=gnu11", "-O3", "-fPIC", "-D_GNU_SOURCE", "-fvisibility=hidden", *kind.flags, f"-I{tree}", f"-I{include}/python{kind.version}",
             f"-I{include}"]
    objects = []
    for source in sorted((tree / "python/src").glob("*.c")):
        objects.append(folder / f"{source.stem}.o")
        tools.run("kvp-cc", *flags, "-c", source, "-o", objects[-1], folder=folder)
    out = folder / f"_kvpool.{kind.suffix}"
    tools.run("kvp-cc", "-shared", "-s", *objects, stage / "lib/libkvpool.so.0", "-Wl,-rpath,$ORIGIN/lib", "-o", out, folder=folder)
    tools.end()
    return out


def metadata(tree: Path, version: str, kind: Kind) -> "tuple[str, str]":
    """The texts of METADATA and entry_points.txt, from python/pyproject.toml."""
    project = tomllib.loads((tree / "python/pyproject.toml").read_text())["project"]
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {version}", f"Summary: {project['description']}",
             f"License-Expression: {project['license']['text']}", "License-File: LICENSE", "License-File: NOTICES",
             f"Requires-Python: {kind.requires or project['requires-python']}", *(f"Classifier: {c}" for c in project["classifiers"]),
             "Description-Content-Type: text/markdown", "", (tree / "python" / project["readme"]).read_text()]
    scripts = ["[console_scripts]", *(f"{name} = {place}" for name, place in sorted(project["scripts"].items())), ""]
    return "\n".join(lines), "\n".join(scripts)


def files_of(tree: Path, stage: Path, extension: Path, version: str, kind: Kind, tag: str) -> "dict[str, bytes]":
    """Name in the wheel: content."""
    files = {}
    for package in ("kvpool", "mooncake"):
        for path in sorted((tree / "python" / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                files[f"{package}/{path.relative_to(tree / 'python' / package)}"] = path.read_bytes()
    files[f"kvpool/{extension.name}"] = extension.read_bytes()
    files |= {f"kvpool/bin/{path.name}": path.read_bytes() for path in sorted((stage / "bin").iterdir())}
    files["kvpool/lib/libkvpool.so.0"] = (stage / "lib/libkvpool.so.0").read_bytes()
    for path in sorted((stage / "include").rglob("*.h")):
        files[f"kvpool/include/{path.relative_to(stage / 'include')}"] = path.read_bytes()
    info = f"kvpool-{version}.dist-info"
    about, scripts = metadata(tree, version, kind)
    files |= {f"{info}/METADATA": about.encode(), f"{info}/entry_points.txt": scripts.encode(),
              f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: deploy/release\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
              f"{info}/licenses/LICENSE": (stage / "LICENSE").read_bytes(), f"{info}/licenses/NOTICES": (stage / "NOTICES").read_bytes(),
              f"{info}/sboms/kvpool.spdx.json": (stage / "components.spdx.json").read_bytes()}
    return files


def write_wheel(path: Path, files: "dict[str, bytes]", info: str, epoch: int) -> None:
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(content)])
    rows.writerow([f"{info}/RECORD", "", ""])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, content in {**files, f"{info}/RECORD": record.getvalue().encode()}.items():
            entry = zipfile.ZipInfo(name, time.gmtime(epoch)[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if "/bin/" in name or ".so" in name else 0o100644) << 16
            wheel.writestr(entry, content)


def make_wheels(tools: Toolchain, tree: Path, stage: Path, version: str, headers: "dict[str, Path]", out: Path,
                epoch: int) -> "list[Path]":
    made = []
    for kind in kinds_for(tools.target):
        tag = f"{kind.tag}-manylinux_2_28_{tools.target.machine}"
        extension = compile_extension(tools, tree, stage, kind, headers[kind.headers])
        path = out / f"kvpool-{version}-{tag}.whl"
        write_wheel(path, files_of(tree, stage, extension, version, kind, tag), f"kvpool-{version}.dist-info", epoch)
        assert path.stat().st_size <= SIZE_MAX, f"{path.name} has {path.stat().st_size} bytes, more than {SIZE_MAX}"
        made.append(path)
    return made
