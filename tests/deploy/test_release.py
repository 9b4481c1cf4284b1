# SPDX-License-Identifier: Apache-2.0
"""deploy/release without building a release: its archives, its compiler's wrapper, its packing, and each of its checks, which have to
fail when the fault is put in. A stand-in for zig has zig's habits; the machine's gcc does its work. With zig's own archive at hand
(in ~/.cache/kvpool/release, where deploy/release leaves it) the cache that is shared by two page sizes is shown with zig, too."""
import csv
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy"))
if sys.version_info < (3, 11):
    pytest.skip("deploy/release needs Python 3.11", allow_module_level=True)
from releasing import archives, checks, libraries, papers, toolchain, wheels  # noqa: E402

TARGET = toolchain.TARGETS["x86-64"]
LOCK = archives.read_lock(ROOT / "deploy/release.lock")

# Zig's habits: arguments that gcc does not have, NDEBUG with every optimisation, and the machine's folders as the answer to a question.
ZIG = """#!/bin/bash
case $1 in ar | ranlib) exec "$@" ;; esac
[ "$1" = cc ] || exit 9
shift
args=(-DNDEBUG)
while [ $# -gt 0 ]; do
    case $1 in
    -target) shift; echo "target $1" >>"$ZIG_SEEN" ;;
    -mcpu=*) ;;
    --print-search-dirs) echo "libraries: =/usr/lib"; exit ;;
    *) args+=("$1") ;;
    esac
    shift
done
exec gcc "${args[@]}"
"""
ASSERTS = "#include <assert.h>\nint main(int n, char **v) { (void)v; assert(n < 9); return 0; }\n"


def load_script():
    spec = importlib.util.spec_from_loader("release_script", SourceFileLoader("release_script", str(ROOT / "deploy/release")))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """The wrapper over the stand-in, in a step of its own."""
    zig = tmp_path / "zig"
    zig.write_text(ZIG)
    zig.chmod(0o755)
    monkeypatch.setenv("ZIG_SEEN", str(tmp_path / "seen"))
    work = tmp_path / "work"
    made = toolchain.Toolchain(TARGET, zig, tmp_path / "meson", work, 1, 1_000_000_000)
    made.environment["ZIG_SEEN"] = str(tmp_path / "seen")
    made.begin("step")
    return made


def compiled(tools, text, *flags, name="program"):
    """A program of that text, compiled by the wrapper."""
    (tools.work / f"{name}.c").write_text(text)
    tools.run("kvp-cc", f"{name}.c", "-o", name, *flags, folder=tools.work)
    return tools.work / name


# ---- the lock file and the archives
def test_each_line_of_the_lock_file_is_whole():
    for archive in LOCK.values():
        assert archive.use in ("linked", "patches", "headers", "tool"), archive.name
        assert len(bytes.fromhex(archive.sha256)) == 32, archive.name
        assert archive.origin.split(":")[0] in ("source", "binary", "pip") and "=" in archive.origin, archive.name
        assert (archive.licence != "-") == (archive.use != "patches"), archive.name


def test_each_linked_library_has_a_recipe_or_is_compiled_by_the_tree():
    assert {a.name for a in LOCK.values() if a.use == "linked"} - set(libraries.LIBRARIES) == {"llhttp"}
    assert set(libraries.LIBRARIES) <= set(LOCK)


def archive_of(content, name="one"):
    return archives.Archive(name, "1", "linked", "MIT", f"{name}.tar", hashlib.sha256(content).hexdigest(), f"source:{name}=1")


def test_given_folder_comes_before_the_cache(tmp_path):
    for folder in ("given", "cache"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "one.tar").write_bytes(b"x")
    store = archives.Store([tmp_path / "given"], tmp_path / "cache", True)
    assert store.get_all([archive_of(b"x")]) == {"one": tmp_path / "given" / "one.tar"}


def test_archive_with_another_checksum_is_refused(tmp_path):
    (tmp_path / "one.tar").write_bytes(b"y")
    with pytest.raises(archives.Missing, match="one.tar: its checksum"):
        archives.Store([tmp_path], tmp_path / "cache", True).get_all([archive_of(b"x")])


def test_every_missing_archive_is_named(tmp_path):
    done = subprocess.run([ROOT / "deploy/release", "x86-64", tmp_path / "out", "--offline", "--cache", tmp_path / "cache", "--work",
                           tmp_path / "work"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    wanted = [a for a in LOCK.values() if a.name != "python3.11-aarch64"]
    assert all(a.file in done.stderr and a.sha256 in done.stderr for a in wanted)


@pytest.mark.parametrize("words, answer", [
    (["x86_64", "--archives", "absent"], "--archives: .*/absent is no folder"),
    (["arm64"], "invalid choice: 'arm64' .choose from 'x86-64', 'aarch64'"),
    (["x86_64"], "these archives are missing")])
def test_command_line(tmp_path, words, answer):
    done = subprocess.run([ROOT / "deploy/release", words[0], tmp_path / "out", *words[1:], "--offline", "--cache", tmp_path / "cache"],
                          capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2 and re.search(answer, done.stderr)


# ---- the compiler's wrapper
def test_wrapper_names_only_its_own_folder(tools):
    said = subprocess.run([tools.bin / "kvp-cc", "--print-search-dirs"], capture_output=True, text=True, check=True).stdout
    assert said == f"libraries: ={tools.prefix}/lib\n"


def test_preprocessor_alone_gets_no_version_of_glibc(tools, tmp_path):
    (tools.work / "a.c").write_text("int a;\n")
    tools.run("kvp-cc", "-E", "a.c", folder=tools.work)
    tools.run("kvp-cc", "-c", "a.c", folder=tools.work)
    assert (tmp_path / "seen").read_text() == "target x86_64-linux-gnu\ntarget x86_64-linux-gnu.2.28\n"


def test_failed_step_shows_the_end_of_its_log(tools):
    with pytest.raises(toolchain.Failed, match="(?s)step: kvp-cc failed.*nothing.c"):
        tools.run("kvp-cc", "-c", "nothing.c", folder=tools.work)


def test_programs_have_assertions_although_zig_takes_them_out(tools):
    assert checks.check_assertions(compiled(tools, ASSERTS)) == []


# ---- the checks, each with its fault
def test_check_finds_ndebug(tools):
    assert checks.check_assertions(compiled(tools, ASSERTS, "-DNDEBUG")) == ["program was compiled without assertions (NDEBUG)"]


def test_check_finds_a_newer_glibc(tools):
    newer = compiled(tools, "#include <unistd.h>\nint close_range(unsigned, unsigned, int);\nint main(void) { return close_range(9, 9, 0); }\n")
    assert any("wants GLIBC_2.34" in line for line in checks.check_glibc(newer))


def test_check_finds_a_library_that_hosts_may_lack(tools):
    program = compiled(tools, "int main(void) { return 0; }\n", "-Wl,--no-as-needed", "-lresolv", "-lm")
    assert checks.check_needs(program, TARGET) == ["program needs libresolv.so.2, which hosts may lack"]


def test_check_finds_another_processor(tools):
    program = compiled(tools, "int main(void) { return 0; }\n")
    assert checks.check_machine(program, TARGET) == []
    assert checks.check_machine(program, toolchain.TARGETS["aarch64"]) == ["program is not for aarch64"]


def test_check_finds_a_program_at_a_fixed_address(tools):
    text = "int main(void) { return 0; }\n"
    assert checks.check_address(compiled(tools, text, "-fPIE", "-pie")) == []
    assert checks.check_address(compiled(tools, text, "-no-pie")) == ["program is loaded at a fixed address (no PIE)"]


def test_check_finds_the_name_of_the_build_folder(tools, tmp_path):
    text = "#include <stdio.h>\nint main(void) { return puts(__FILE__); }\n"
    assert checks.check_folders(compiled(tools, text), [tools.work]) == []
    (tmp_path / "elsewhere.c").write_text(text)
    tools.run("kvp-cc", tmp_path / "elsewhere.c", "-o", "leak", folder=tools.work)
    assert checks.check_folders(tools.work / "leak", [tmp_path]) == [f"leak contains the name of the folder {tmp_path}"]


def test_check_finds_a_build_without_rdma(tools):
    text = 'const char *loads(void);\nconst char *loads(void) { return "libibverbs.so.1 librdmacm.so.1 libcuda.so.1"; }\n'
    assert checks.check_loaded(compiled(tools, text, "-shared", "-fPIC", name="libkvpool.so.0")) == []
    bare = compiled(tools, text.replace("libibverbs.so.1", ""), "-shared", "-fPIC", name="libkvpool.so.0")
    assert checks.check_loaded(bare) == ["libkvpool.so.0 does not load libibverbs.so.1"]


def test_check_finds_functions_of_libraries_that_can_be_seen(tools):
    library = compiled(tools, "int curl_easy_init(void);\nint curl_easy_init(void) { return 0; }\n", "-shared", "-fPIC", name="lib.so")
    assert checks.check_hidden(library) == ["lib.so shows 1 functions of the libraries in it, such as curl_easy_init"]


def host_library(name):
    return subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("word", [host_library("libm.a"), host_library("libm.so.6"), "-L" + os.path.dirname(host_library("libm.a"))])
def test_check_finds_a_library_of_the_build_machine(tools, word):
    compiled(tools, "int main(void) { return 0; }\n", "-L.", "-lm")
    assert checks.check_links(tools.log, tools.work) == []
    compiled(tools, "int main(void) { return 0; }\n", word)
    assert checks.check_links(tools.log, tools.work) == [f"step links {word.removeprefix('-L')} of the build machine"]


def page_sizes(tools, is_shared):
    """Two configurations of one library, in two folders, with the same names and arguments. Returns their objects."""
    objects = []
    for lg_page in (12, 16):
        tools.begin(f"pages-{lg_page}")
        if is_shared:
            tools.environment["ZIG_LOCAL_CACHE_DIR"] = str(tools.work / "shared")
        folder = tools.work / f"pages-{lg_page}"
        (folder / "include").mkdir(parents=True)
        (folder / "include/page.h").write_text(f"#define LG_PAGE {lg_page}\n")
        (folder / "page.c").write_text('#include "page.h"\nint lg_page = LG_PAGE;\n')
        tools.run("kvp-cc", "-Iinclude", "-c", "page.c", "-o", "page.o", folder=folder)
        objects.append((folder / "page.o").read_bytes())
    return objects


def test_check_finds_a_cache_that_two_page_sizes_share(tools):
    page_sizes(tools, is_shared=False)
    assert checks.check_caches(tools.log) == []
    shutil.rmtree(tools.work / "pages-12")
    shutil.rmtree(tools.work / "pages-16")
    page_sizes(tools, is_shared=True)
    assert checks.check_caches(tools.log) == [f"pages-12 and pages-16 used one compiler cache: {tools.work / 'shared'}"]


def test_zig_itself_takes_one_page_size_for_the_other(tmp_path):
    found = sorted((Path.home() / ".cache/kvpool/release").glob("zig-*/ziglang/zig"))
    if not found:
        pytest.skip("zig is not in ~/.cache/kvpool/release: deploy/release has not run here")
    apart = page_sizes(toolchain.Toolchain(TARGET, found[0], tmp_path, tmp_path / "apart", 1, 0), is_shared=False)
    assert apart[0] != apart[1]


# ---- packing
def test_archive_depends_on_names_contents_and_modes_alone(tmp_path):
    script = load_script()
    for place, mask in (("a", 0o022), ("b", 0o077)):
        stage = tmp_path / place / "kvpool-1"
        (stage / "bin").mkdir(parents=True)
        (stage / "bin/run").write_text("x")
        (stage / "bin/run").chmod(0o755 & ~mask)
        (stage / "bin/link").symlink_to("run")
        os.utime(stage / "bin/run", (mask, mask))
        script.pack(stage, tmp_path / place / "kvpool-1.tar.xz", 1_000_000_000)
    assert (tmp_path / "a/kvpool-1.tar.xz").read_bytes() == (tmp_path / "b/kvpool-1.tar.xz").read_bytes()
    with tarfile.open(tmp_path / "a/kvpool-1.tar.xz") as tar:
        assert tar.getnames() == ["kvpool-1", "kvpool-1/bin", "kvpool-1/bin/link", "kvpool-1/bin/run"]


@pytest.fixture
def stage(tmp_path):
    """A release without content."""
    made = tmp_path / "stage"
    for name in ("bin/kvpool", "lib/libkvpool.so.0", f"lib/{toolchain.TLS}", f"lib/{toolchain.CURL}", "include/kvpool.h", "LICENSE", "NOTICES",
                 "components.spdx.json"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    return made


def wheel_of(tmp_path, stage, kind, platform):
    extension = tmp_path / f"_kvpool.{kind.suffix}"
    extension.write_bytes(b"extension")
    path = tmp_path / f"kvpool-1.2-{kind.tag}-{platform}.whl"
    wheels.write_wheel(path, wheels.files_of(ROOT, stage, extension, "1.2", kind, platform), 1_700_000_000)
    return path


def test_wheel_has_all_its_files_and_their_sizes(tmp_path, stage):
    kind = wheels.kinds_for(TARGET)[-1]
    with zipfile.ZipFile(wheel_of(tmp_path, stage, kind, "manylinux_2_28_x86_64")) as wheel:
        rows = list(csv.reader(io.StringIO(wheel.read("kvpool-1.2.dist-info/RECORD").decode())))
        assert [row[0] for row in rows] == wheel.namelist()
        assert all(int(size) == len(wheel.read(name)) for name, _, size in rows[:-1])
        assert wheel.getinfo("kvpool/bin/kvpool").external_attr >> 16 == 0o100755
        assert {"kvpool/__init__.py", "mooncake/store.py", f"kvpool/_kvpool.{kind.suffix}", "kvpool/lib/libkvpool.so.0",
                "kvpool/include/kvpool.h", "kvpool-1.2.dist-info/licenses/NOTICES",
                "kvpool-1.2.dist-info/sboms/kvpool.spdx.json"} <= set(wheel.namelist())


def test_wheel_is_installed_by_pip(tmp_path, stage):
    kind = wheels.Kind(f"cp3{sys.version_info.minor}-none", "", "so", ">=3.9")
    path = wheel_of(tmp_path, stage, kind, "linux_x86_64")
    pytest.importorskip("pip")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", tmp_path / "site", path]
    subprocess.run(install, check=True)
    assert (tmp_path / "site/kvpool/bin/kvpool").read_text() == "bin/kvpool"
    assert "kvpool._programs" in (tmp_path / "site/bin/kvpool").read_text()


def test_wheel_that_is_too_large_is_refused(tmp_path):
    with pytest.raises(toolchain.Failed, match="more than 6291456"):
        wheels.write_wheel(tmp_path / "large.whl", {"noise": os.urandom(wheels.SIZE_MAX)}, 1_700_000_000)


# ---- the papers
@pytest.fixture
def zig(tmp_path):
    """The files of zig's folder that papers reads."""
    folder = tmp_path / "ziglang"
    for _, _, name in papers.RUNTIMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"/* words of {name} */\nint code;\n")
    config = folder / "lib/libcxx/include/__config"
    config.parent.mkdir()
    config.write_text("#  define _LIBCPP_VERSION 220108\n")
    return folder


def test_list_of_components_is_as_spdx_wants_it(tmp_path, zig):
    runtimes = papers.find_runtimes(LOCK["zig"], zig)
    files = {}
    for archive in (*LOCK.values(), *runtimes):
        files[archive] = tmp_path / archive.file
        files[archive].write_text(archive.file)
    for name, epoch in (("a", 1), ("again", 1), ("b", 2)):
        papers.write_components(tmp_path / f"{name}.json", "1.2", "x86-64", files, epoch)
    text = (tmp_path / "a.json").read_text()
    listed, other = json.loads(text), json.loads((tmp_path / "b.json").read_text())
    assert text == (tmp_path / "again.json").read_text() and listed["documentNamespace"] != other["documentNamespace"]
    packages = {package["SPDXID"]: package for package in listed["packages"]}
    assert len(packages) == len(listed["packages"]) == 1 + len(files)
    assert all(re.fullmatch("SPDXRef-[A-Za-z0-9.-]+", name) for name in packages)
    for name, package in packages.items():
        assert package["licenseConcluded"] != "NOASSERTION" and " OR " not in package["licenseConcluded"], name
        assert package["licenseDeclared"] != "NOASSERTION" or name.endswith("-patches"), name
        # The archive of a release cannot have its own place and checksum.
        assert name == "SPDXRef-kvpool" or package["downloadLocation"].startswith("https://") and len(package["checksums"]) == 1, name
    ends = [(row["spdxElementId"], row["relatedSpdxElement"]) for row in listed["relationships"]]
    assert {end for row in ends for end in row} == {"SPDXRef-DOCUMENT", *packages}
    assert packages["SPDXRef-libc--"]["versionInfo"] == "22.1.8"


def test_notices_have_each_text_below_its_own_licence(tmp_path, zig):
    texts = papers.find_runtimes(LOCK["zig"], zig)
    for name in ("liburing", "libibverbs"):
        source = tmp_path / name
        (source / "usr/share/doc/x").mkdir(parents=True)
        (source / "usr/share/doc/x/copyright").write_text(f"words of {name}")
        for file in ("LICENSE", "COPYING", "COPYING.GPL") if name == "liburing" else ():
            (source / file).write_text(f"words of {file}")
        texts |= {LOCK[name]: papers.find_texts(LOCK[name], source)}
    papers.write_notices(tmp_path / "NOTICES", "1.2", texts)
    head, *parts = (tmp_path / "NOTICES").read_text().split(papers.RULE)
    assert "liburing 2.3: MIT (of: LGPL-2.1-or-later OR MIT)\nThe text of LICENSE in liburing_2.3.orig.tar.gz:\n\nwords of LICENSE\n" in "".join(parts)
    assert "GPL" not in next(part for part in parts if "liburing" in part).replace("LGPL-2.1-or-later OR", "")
    assert any("libc++ 22.1.8: Apache-2.0 WITH LLVM-exception\n" in part and "words of lib/libcxx/" in part for part in parts)
    assert not any("int code" in part for part in parts if "glibc" in part)
    linked, loaded = head.split("Only declarations")
    assert "libc++abi 22.1.8" in linked and "libibverbs" not in linked and "libibverbs 44.0: Linux-OpenIB" in loaded


def test_pages_of_a_release_lead_to_its_own_files(tmp_path):
    papers.copy_pages(ROOT, tmp_path)
    links = [(page, link) for page in tmp_path.rglob("*.md") for link in papers.LINK.finditer(page.read_text())]
    assert len(links) > 20 and [f"{page}: {link[2]}" for page, link in links if not (page.parent / link[2]).exists()] == []
    assert "](../PROTOCOL.md" in (ROOT / "docs/operations/upgrade.md").read_text(), "no link leaves the release: the line above says nothing"
