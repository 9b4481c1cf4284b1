# SPDX-License-Identifier: Apache-2.0
"""The C programs of examples/ are built by pkg-config alone against the library as it is installed, and run against a pool."""
import shlex
import subprocess

import pytest

from conftest import BUILD, ROOT, SAN, SLOW, clean_env

pytestmark = pytest.mark.skipif(SAN != "", reason="a program without a sanitizer cannot load a library that has one")

# Whether the program takes the address of a master, and the last line that it prints.
PROGRAMS = {
    "put_get": (True, "the bytes are equal"),
    "connector_step": (True, "loaded 8 blocks, computed 0"),
    "p2p": (False, "request-1: all blocks are written; the first byte is 42, the last one 42"),
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment in which pkg-config finds an installation in a folder that holds nothing else, and programs its library."""
    home = tmp_path_factory.mktemp("installed")
    subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", home], check=True, timeout=60 * SLOW)
    config, = home.rglob("kvpool.pc")
    return {**clean_env(home), "PKG_CONFIG_LIBDIR": str(config.parent), "PKG_CONFIG_SYSROOT_DIR": str(home),
            "LD_LIBRARY_PATH": str(config.parent.parent)}


def test_every_program_is_run():
    assert {path.stem for path in (ROOT / "examples").glob("*.c")} == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_builds_and_runs(pool, installed, tmp_path, name):
    needs_master, last_line = PROGRAMS[name]
    source, program = ROOT / "examples" / f"{name}.c", tmp_path / name
    assert len(source.read_text().splitlines()) <= 150
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "kvpool"], env=installed, text=True, capture_output=True, check=True)
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", source, "-o", program, *shlex.split(flags.stdout)],
                   env=installed, check=True, timeout=60 * SLOW)
    command = [program, pool.addr] if needs_master else [program]
    ran = subprocess.run(command, env=installed, text=True, capture_output=True, timeout=60 * SLOW)
    assert ran.returncode == 0 and ran.stdout.splitlines()[-1] == last_line, ran
