# SPDX-License-Identifier: Apache-2.0
"""make install: program, headers, shared and static library, pkg-config; only outbox_* is visible."""

import os
import re
import subprocess

import pytest

PROGRAM = r"""
#include <outbox/produce.h>
#include <stdio.h>
int main(void)
{
    printf("%s\n", outbox_version());
    return 0;
}
"""


def sh(*argv, **kw):
    r = subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=False, **kw)
    assert r.returncode == 0, f"{argv}\n{r.stdout[-3000:]}\n{r.stderr[-3000:]}"
    return r.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Installed into a folder of its own, by the rules of the build."""
    dest = tmp_path_factory.mktemp("dest")
    build = os.environ.get("OUTBOX_BUILD") or str(
        __import__("pathlib").Path(__file__).resolve().parents[2] / "build"
    )
    sh("meson", "install", "-C", build, "--no-rebuild", env={**os.environ, "DESTDIR": str(dest)})
    return dest


def one(folder, pattern):
    found = sorted(folder.rglob(pattern))
    assert found, f"no {pattern} was installed"
    return found[0]


def pkg_config(installed, *args):
    pc = one(installed, "outbox.pc")
    env = {**os.environ, "PKG_CONFIG_PATH": str(pc.parent)}
    prefix = sh("pkg-config", "--variable=prefix", "outbox", env=env).strip()
    flags = sh("pkg-config", f"--define-variable=prefix={installed}{prefix}", *args, "outbox", env=env)
    return flags.split()


def test_program_runs(installed):
    assert re.match(r"outbox \d+\.\d+\.\d+", sh(one(installed, "bin/outbox"), "--version"))


def test_public_headers_and_nothing_else(installed):
    names = {p.name for p in (one(installed, "include/outbox/status.h").parent).iterdir()}
    assert names == {"status.h", "produce.h", "postgres.h", "mongodb.h", "relay.h"}


@pytest.mark.parametrize("header", ["status.h", "produce.h", "postgres.h", "mongodb.h", "relay.h"])
@pytest.mark.parametrize("language", ["c", "c++"])
def test_each_header_stands_alone(installed, tmp_path, header, language):
    src = tmp_path / "a.c"
    src.write_text(f"#include <outbox/{header}>\n#include <outbox/{header}>\n")
    compiler = {"c": ["gcc", "-std=c11"], "c++": ["gcc", "-x", "c++", "-std=c++17"]}[language]
    if language == "c++" and subprocess.run(
        ["gcc", "-x", "c++", "-fsyntax-only", os.devnull], capture_output=True, check=False
    ).returncode:
        pytest.skip("gcc has no C++ compiler here")
    flags = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]
    sh(*compiler, *flags, *pkg_config(installed, "--cflags"), src)


def test_soname(installed):
    lib = one(installed, "liboutbox.so.0.*")
    assert "[liboutbox.so.0]" in sh("readelf", "-d", lib)
    assert one(installed, "liboutbox.so").resolve() == lib.resolve()


def test_only_public_names_leave_the_shared_library(installed):
    out = sh("nm", "-D", "--defined-only", one(installed, "liboutbox.so.0.*"))
    names = {line.split()[-1].split("@")[0] for line in out.splitlines() if line}
    names.discard("OUTBOX_0")
    assert "outbox_version" in names
    assert {n for n in names if not n.startswith("outbox_")} == set()


def test_every_declared_function_is_exported(installed):
    """A function in a public header that the library does not have is found by its users only."""
    out = sh("nm", "-D", "--defined-only", one(installed, "liboutbox.so.0.*"))
    exported = {line.split()[-1].split("@")[0] for line in out.splitlines() if line}
    declared = set()
    for header in one(installed, "include/outbox/status.h").parent.iterdir():
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
        declared |= set(re.findall(r"OUTBOX_API[^;]*?\b(outbox_\w+)\s*\(", text))
    assert declared and declared - exported == set()


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_a_program_links_by_pkg_config(installed, tmp_path, kind):
    src = tmp_path / "a.c"
    src.write_text(PROGRAM)
    exe = tmp_path / "a"
    libdir = one(installed, "liboutbox.a").parent
    if kind == "static":
        libs = [str(libdir / "liboutbox.a")]
        libs += [f for f in pkg_config(installed, "--static", "--libs") if f != "-loutbox"]
    else:
        libs = pkg_config(installed, "--libs")
    sh("gcc", src, *pkg_config(installed, "--cflags"), *libs, "-o", exe)
    env = {**os.environ, "LD_LIBRARY_PATH": str(libdir)}
    needed = sh("readelf", "-d", exe)
    assert ("liboutbox.so.0" in needed) == (kind == "shared")
    assert re.match(r"\d+\.\d+\.\d+", sh(exe, env=env))
