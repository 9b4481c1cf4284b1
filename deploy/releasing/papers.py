# SPDX-License-Identifier: Apache-2.0
"""What a release says of itself: the licences of all that is in it, and the list of components in SPDX's format (version 2.3)."""
import dataclasses
import hashlib
import json
import re
import shutil
import time
import uuid
from pathlib import Path
from urllib.parse import quote

from releasing.archives import Archive

RULE = "=" * 100
HEAD = """Licences of the software of others in kvpool {version}. kvpool's own licence is in the file LICENSE.

This software is linked into kvpool's programs, its libraries and its Python extension:
{linked}

Only declarations of these libraries were compiled in. The programs load the libraries from the host, if it has them:
{headers}

libmicrohttpd and libzmq come under the LGPL: you may replace them. kvpool's source has all that is needed to build the release
again with other versions of them: the script deploy/release, and deploy/release.lock with the name and checksum of each archive.

The texts of the licences follow, in this order.
"""
# The files whose text holds, in archives that have other licences besides: of documents, or of which one may be chosen.
TEXTS = {"libuv": ("LICENSE",), "liburing": ("LICENSE",), "pcre2": ("LICENCE",)}
LLVM = "Apache-2.0 WITH LLVM-exception"
# What the compiler links in from its own archive: name, licence and the file with its text.
RUNTIMES = (("libc++", LLVM, "lib/libcxx/LICENSE.TXT"), ("libc++abi", LLVM, "lib/libcxxabi/LICENSE.TXT"),
            ("libunwind", LLVM, "lib/libunwind/LICENSE.TXT"), ("compiler-rt", "MIT", "LICENSE"),
            ("glibc-start-files", "LGPL-2.1-or-later WITH GCC-exception-2.0", "lib/libc/glibc/csu/elf-init-2.33.c"))


LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)#\s]+)(#[^)]*)?\)")  # to another file: text, file and place


def copy_pages(tree: Path, stage: Path) -> None:
    """What users read, from kvpool's sources. A link to a file that is not in the release becomes its text."""
    for name in ("LICENSE", "CHANGELOG.md"):
        shutil.copy(tree / name, stage)
    shutil.copy(tree / "deploy/releasing/archive.md", stage / "README.md")
    shutil.copytree(tree / "docs/operations", stage / "docs/operations")
    for page in stage.rglob("*.md"):
        page.write_text(LINK.sub(lambda link, at=page.parent: link[0] if (at / link[2]).exists() else link[1], page.read_text()))


def find_runtimes(zig: Archive, folder: Path) -> "dict[Archive, list[Path]]":
    """The compiler's libraries and the files with their licences. folder: zig's. What zig has changed has zig's version."""
    config = (folder / "lib/libcxx/include/__config").read_text()
    llvm = ".".join(str(int(part)) for part in re.search(r"_LIBCPP_VERSION (\d\d)(\d\d)(\d\d)", config).groups())
    return {dataclasses.replace(zig, name=name, use="linked", licence=licence, version=llvm if licence == LLVM else f"zig-{zig.version}"):
            [folder / file] for name, licence, file in RUNTIMES}


def find_texts(archive: Archive, source: Path) -> "list[Path]":
    """The files with the licence of an unpacked archive: they are at its top, or are a package's copyright file."""
    files = sorted(file for file in source.iterdir() if file.is_file() and file.name.upper().startswith(("LICEN", "COPYING", "NOTICE")))
    if archive.name in TEXTS:
        files = [source / name for name in TEXTS[archive.name]]
    files = files or sorted(source.glob("usr/share/doc/*/copyright"))
    assert files, f"{archive.name} has no file with its licence"
    return files


def conclude(licence: str) -> str:
    """Of licences with OR between them, a release takes the last."""
    return licence.split(" OR ")[-1]


def read_text(file: Path) -> str:
    """Of C's source, the comment at its top."""
    text = file.read_text(errors="replace")
    return text.split("*/")[0].removeprefix("/*") if file.suffix == ".c" else text


def write_notices(path: Path, version: str, texts: "dict[Archive, list[Path]]") -> None:
    def titles(use: str) -> str:
        return "\n".join(f"  {a.name} {a.version}: {conclude(a.licence)}" for a in texts if a.use == use)

    parts = [HEAD.format(version=version, linked=titles("linked"), headers=titles("headers"))]
    for archive, files in texts.items():
        choice = f" (of: {archive.licence})" if " OR " in archive.licence else ""
        parts += [f"{RULE}\n{archive.name} {archive.version}: {conclude(archive.licence)}{choice}\nThe text of {file.name} in {archive.file}:\n\n"
                  f"{read_text(file).strip()}\n" for file in files]
    path.write_text("\n".join(parts))


def locate(archive: Archive, file: Path) -> str:
    """Where everyone can fetch the archive, for as long as Debian's snapshots and PyPI keep what they had."""
    if archive.origin.startswith("pip:"):
        with file.open("rb") as f:
            digest = hashlib.file_digest(f, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
        return f"https://files.pythonhosted.org/packages/{digest[:2]}/{digest[2:4]}/{digest[4:]}/{archive.file}"
    with file.open("rb") as f:
        return f"https://snapshot.debian.org/file/{hashlib.file_digest(f, 'sha1').hexdigest()}"


def identify(archive: Archive) -> str:
    """The package that the archive is of, as a package URL."""
    kind, package = archive.origin.split(":", 1)
    name, version = package.split("=", 1)
    arch = {"pip": "", "source": "?arch=source", "binary": f"?arch={archive.file.removesuffix('.deb').split('_')[-1]}"}[kind]
    return f"pkg:{'pypi' if kind == 'pip' else 'deb/debian'}/{name.split(':')[0]}@{quote(version, safe='~')}{arch}"


def spdx_id(name: str) -> str:
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def relate(archive: Archive) -> "list[tuple[str, str, str]]":
    """Its relations to other packages, in SPDX's words."""
    relations = {
        "linked": [("kvpool", "STATIC_LINK", archive.name)],
        "patches": [(archive.name, "PATCH_APPLIED", archive.name.removesuffix("-patches"))],
        "headers": [(archive.name, "BUILD_DEPENDENCY_OF", "kvpool")],
        "tool": [(archive.name, "BUILD_TOOL_OF", "kvpool")],
    }[archive.use]
    return relations + [(archive.name, "CONTAINED_BY", "zig")] * (archive.name in (name for name, _, _ in RUNTIMES))


def describe(archive: Archive, file: Path, licences: "dict[str, str]") -> "dict[str, object]":
    """licences: of all archives. A distribution's patches have the licence of what they change."""
    concluded = conclude(licences[archive.name.removesuffix("-patches")])
    return {"SPDXID": spdx_id(archive.name), "name": archive.name, "versionInfo": archive.version, "packageFileName": archive.file,
            "supplier": "NOASSERTION" if archive.origin.startswith("pip:") else "Organization: Debian",
            "downloadLocation": locate(archive, file), "filesAnalyzed": False,
            "checksums": [{"algorithm": "SHA256", "checksumValue": archive.sha256}], "licenseConcluded": concluded,
            "licenseDeclared": "NOASSERTION" if archive.licence == "-" else archive.licence, "copyrightText": "NOASSERTION",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": identify(archive)}]}


def write_components(path: Path, version: str, arch: str, archives: "dict[Archive, Path]", epoch: int) -> None:
    """archives: all that the release is made of and built with, and the file of each."""
    licences = {a.name: a.licence for a in archives}
    packages = [{
        "SPDXID": spdx_id("kvpool"), "name": "kvpool", "versionInfo": version, "supplier": "Organization: kvpool",
        "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
        "copyrightText": "NOASSERTION", "primaryPackagePurpose": "APPLICATION",
        "comment": "This list is in the archive and in the wheels. SHA256SUMS, beside them, has their checksums."}]
    packages += [describe(a, file, licences) for a, file in archives.items()]
    relations = [("DOCUMENT", "DESCRIBES", "kvpool"), *(relation for a in archives for relation in relate(a))]
    name = f"kvpool-{version}-{arch}"
    # The same list has the same name, and another list has another.
    unique = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([name, epoch, packages]))
    path.write_text(json.dumps({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{unique}",
        "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
                         "creators": ["Organization: kvpool", f"Tool: deploy/release-{version}"]},
        "packages": packages,
        "relationships": [{"spdxElementId": spdx_id(a), "relationshipType": kind, "relatedSpdxElement": spdx_id(b)}
                          for a, kind, b in relations]}, indent=1) + "\n")
