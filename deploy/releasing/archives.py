# SPDX-License-Identifier: Apache-2.0
"""The archives of deploy/release.lock: found in a folder, or fetched with apt-get and pip, and accepted by checksum only."""
import hashlib
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

SUITES = ("bullseye", "bookworm")  # the Debian releases whose packages the lock file names


class Missing(Exception):
    """Archives that are not to be had; the text names each of them."""


@dataclass(frozen=True)
class Archive:
    name: str
    version: str
    use: str  # linked, patches, headers or tool
    licence: str
    file: str
    sha256: str
    origin: str  # source:PACKAGE=VERSION, binary:PACKAGE=VERSION or pip:PACKAGE=VERSION


def read_lock(path: Path) -> "dict[str, Archive]":
    lines = (line.split() for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return {line[0]: Archive(*line[:3], line[3].replace("_", " "), *line[4:]) for line in lines}


def sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def run_apt(at: Path, folder: Path, *arguments: str) -> None:
    """apt-get with a configuration of its own in `at`: the machine's may lack source packages and other releases, and stays as it is."""
    options = (f"Dir::Etc::sourcelist={at}/sources.list", "Dir::Etc::sourceparts=/dev/null", f"Dir::State::lists={at}/lists",
               f"Dir::Cache={at}/cache", "Dir::State::status=/dev/null", "APT::Architectures::=amd64", "APT::Architectures::=arm64",
               "APT::Sandbox::User=root")
    with (at / "apt.log").open("a") as log:
        words = [word for option in options for word in ("-o", option)]
        subprocess.run(["apt-get", "-q", *words, *arguments], cwd=folder, stdout=log, stderr=log, check=False)


def prepare_apt(at: Path) -> None:
    """Makes that configuration, with the machine's own mirrors of Debian."""
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages"],
                            capture_output=True, text=True, check=False).stdout.splitlines()
    mirrors = sorted({line.split()[1].rstrip("/") for line in listed if line.startswith("Debian ")})
    lines = [f"{kind} [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {suite}{part} main\n"
             for mirror in mirrors for suite in SUITES for kind in ("deb", "deb-src")
             for part in (("-security",) if mirror.endswith("-security") else ("", "-updates"))]
    for part in ("lists/partial", "cache/archives/partial"):
        (at / part).mkdir(parents=True, exist_ok=True)
    (at / "sources.list").write_text("".join(lines))
    run_apt(at, at, "update")


class Store:
    """Looks for an archive in the folders `given`, then in `cache`, then fetches it into `cache`."""

    def __init__(self, given: "list[Path]", cache: Path, is_offline: bool):
        self.given, self.cache, self.is_offline = given, cache, is_offline
        self.has_apt = False

    def find(self, archive: Archive) -> "Path | None":
        path = next((folder / archive.file for folder in (*self.given, self.cache) if (folder / archive.file).is_file()), None)
        if path is not None and sha256(path) != archive.sha256:
            raise Missing(f"{path}: its checksum is not the one in deploy/release.lock")
        return path

    def fetch(self, archive: Archive) -> None:
        kind, package = archive.origin.split(":", 1)
        self.cache.mkdir(parents=True, exist_ok=True)
        if kind == "pip":
            subprocess.run(["python3", "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", self.cache,
                            package.replace("=", "==")], check=False)
            return
        if not self.has_apt:
            prepare_apt(self.cache / "apt")
            self.has_apt = True
        # A source package fails as a whole when one of its files is not on the mirror; the one that is needed may still come.
        words = ("source", "--download-only", "--only-source") if kind == "source" else ("download",)
        run_apt(self.cache / "apt", self.cache, *words, package)

    def get_all(self, archives: "list[Archive]") -> "dict[str, Path]":
        paths = {}
        for archive in archives:
            path = self.find(archive)
            if path is None and not self.is_offline:
                self.fetch(archive)
                path = self.find(archive)
            paths[archive.name] = path
        missing = [f"{a.file} ({a.origin}, SHA-256 {a.sha256})" for a in archives if paths[a.name] is None]
        if missing:
            raise Missing("\n  ".join(["these archives are missing; put them into a folder and name it with --archives:", *missing]))
        return paths


def unpack(path: Path, into: Path) -> Path:
    """Unpacks a tar archive, a .deb or a wheel into the new folder `into`. Returns the folder with its files: the archive's own
    single folder, if it has one."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    if path.suffix == ".deb":
        subprocess.run(["dpkg-deb", "-x", path, into], check=True)
    elif path.suffix == ".whl":
        zipfile.ZipFile(path).extractall(into)
    else:
        tarfile.open(path).extractall(into, filter="tar")
        if len(entries := list(into.iterdir())) == 1 and entries[0].name != "debian":
            return entries[0]
    return into
