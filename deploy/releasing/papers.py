# SPDX-License-Identifier: Apache-2.0
"""What a release says of itself: the licences of all that is in it, and the list of components in SPDX's format."""
import json
import time
from pathlib import Path

from releasing.archives import Archive

HEAD = """kvpool {version} has the following software linked into its programs, its library and its Python extension.
kvpool's own licence is in the file LICENSE.

libmicrohttpd and libzmq come under the LGPL: you may replace them. kvpool's source has all that is needed to build the release
again with other versions of them: the script deploy/release, and deploy/release.lock with the name and checksum of each archive.
"""
# What the compiler links into every program.
RUNTIME = {"libc++": "lib/libcxx/LICENSE.TXT", "libc++abi": "lib/libcxxabi/LICENSE.TXT", "libunwind": "lib/libunwind/LICENSE.TXT",
           "compiler-rt and start files": "LICENSE"}


def write_notices(path: Path, version: str, sources: "dict[Archive, Path]", zig: Path) -> None:
    """sources: the unpacked archives. A licence is at the top of a source archive, or is a package's copyright file."""
    notices = []
    for archive, source in sources.items():
        files = [file for file in source.iterdir() if file.is_file() and file.name.upper().startswith(("LICEN", "COPYING", "NOTICE"))]
        files = sorted(files) or sorted(source.glob("usr/share/doc/*/copyright"))
        assert files, f"{archive.name} has no file with its licence"
        notices += [(f"{archive.name} {archive.version} ({archive.licence})", file) for file in files]
    notices += [(f"{name}, of the compiler", zig / file) for name, file in RUNTIME.items()]
    texts = [f"{'=' * 100}\n{title}\n\n{file.read_text(errors='replace')}" for title, file in notices]
    path.write_text("\n".join([HEAD.format(version=version), *texts]))


def describe_archive(archive: Archive) -> "dict[str, object]":
    kind, package = archive.origin.split(":", 1)
    name, version = package.split("=", 1)
    url = f"pkg:{'pypi' if kind == 'pip' else 'deb/debian'}/{name.split(':')[0]}@{version}{'?arch=source' if kind == 'source' else ''}"
    return {"packageFileName": archive.file, "checksums": [{"algorithm": "SHA256", "checksumValue": archive.sha256}],
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": url}]}


def write_components(path: Path, version: str, arch: str, archives: "list[Archive]", epoch: int) -> None:
    """All archives of the lock file: those that are linked in, and those that the release is built with."""
    def package(name: str, number: str, licence: str, more: "dict[str, object]") -> "dict[str, object]":
        return {"SPDXID": f"SPDXRef-{name}", "name": name, "versionInfo": number, "licenseDeclared": licence, "licenseConcluded": "NOASSERTION",
                "copyrightText": "NOASSERTION", "downloadLocation": "NOASSERTION", "filesAnalyzed": False, **more}

    zig = next(a.version for a in archives if a.name == "zig")
    packages = [package("kvpool", version, "Apache-2.0", {}), package("llvm-runtimes", zig, "Apache-2.0 WITH LLVM-exception", {})]
    packages += [package(a.name, a.version, "NOASSERTION" if a.licence == "-" else a.licence, describe_archive(a)) for a in archives]
    relations = [("DOCUMENT", "DESCRIBES", "kvpool"), ("kvpool", "STATIC_LINK", "llvm-runtimes")]
    relations += [(a.name, "BUILD_TOOL_OF", "kvpool") if a.use == "tool" else
                  ("kvpool", "STATIC_LINK" if a.use == "linked" else "GENERATED_FROM", a.name) for a in archives]
    path.write_text(json.dumps({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"kvpool-{version}-{arch}",
        "documentNamespace": f"urn:kvpool:{version}:{arch}:{epoch}",
        "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)), "creators": ["Tool: deploy-release"]},
        "packages": packages,
        "relationships": [{"spdxElementId": f"SPDXRef-{a}", "relationshipType": kind, "relatedSpdxElement": f"SPDXRef-{b}"}
                          for a, kind, b in relations]}, indent=1) + "\n")
