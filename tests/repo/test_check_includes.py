# SPDX-License-Identifier: Apache-2.0
"""The include check finds each kind of bad include, and nothing in the tree as it is."""

import subprocess

import pytest

BAD = [
    ("core knows no event", "core/a.c", '"event/event.h"', "core stands below event"),
    ("config knows no event", "config/a.c", '"event/event.h"', "config stands below event"),
    ("a source knows no sink", "source/a.c", '"sink/sink.h"', "side by side"),
    ("a route knows no flow", "route/a.c", '"flow/flow.h"', "side by side"),
    ("a sink knows no relay", "sink/file.c", '"relay/conf.h"', "sink stands below relay"),
    ("relay knows no command", "relay/a.c", '"cli/cli.h"', "relay stands below cli"),
    ("flow has no clock", "flow/a.c", '"core/clock.h"', "flow is pure"),
    ("flow has no log", "flow/a.c", '"core/log.h"', "flow is pure"),
    ("flow has no files", "flow/a.c", "<stdio.h>", "flow is pure"),
    ("flow has no threads", "flow/a.c", "<pthread.h>", "flow is pure"),
    ("a driver knows no other", "source/x/a.c", '"source/y/b.h"', "drivers do not know each other"),
    ("only the registry knows drivers", "relay/a.c", '"source/x/b.h"', "knows drivers"),
    ("includes name their folder", "core/a.c", '"err.h"', "folder/file.h"),
    ("a folder outside the tree", "misc/a.c", "<stdio.h>", "no such folder"),
    ("core is not the library", "core/a.c", '"outbox/produce.h"', "not for this folder"),
]
GOOD = [
    ("relay/a.c", '"sink/sink.h"'),
    ("relay/drivers.c", '"source/x/b.h"'),
    ("flow/a.c", '"event/settle.h"'),
    ("flow/a.c", "<string.h>"),
    ("source/x/a.c", '"source/source.h"'),
    ("produce/a.c", '"outbox/produce.h"'),
    ("cli/a.c", '"relay/relay.h"'),
]


def check(root, tree):
    return subprocess.run(
        ["/usr/bin/python3", str(root / "tools" / "check-includes"), str(tree)],
        capture_output=True, text=True, check=False,
    )


def write(tree, path, include):
    p = tree / "src" / path
    p.parent.mkdir(parents=True, exist_ok=True)
    p.write_text(f"#include <stdint.h>\n#include {include}\n")


@pytest.mark.parametrize("path,include,want", [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_include_is_found(root, tmp_path, path, include, want):
    write(tmp_path, path, include)
    r = check(root, tmp_path)
    assert r.returncode == 1
    assert want in r.stdout
    line = 1 if want == "no such folder" else 2
    assert f"src/{path}:{line}:" in r.stdout


def test_good_includes_pass(root, tmp_path):
    for path, include in GOOD:
        write(tmp_path, path, include)
        r = check(root, tmp_path)
        assert (r.returncode, r.stdout) == (0, ""), (path, include)


def test_public_header_includes_public_headers_only(root, tmp_path):
    (tmp_path / "include" / "outbox").mkdir(parents=True)
    header = tmp_path / "include" / "outbox" / "a.h"
    header.write_text('#include "outbox/status.h"\n')
    assert check(root, tmp_path).returncode == 0
    header.write_text('#include "core/err.h"\n')
    r = check(root, tmp_path)
    assert r.returncode == 1 and "public headers only" in r.stdout


def test_an_empty_tree_is_no_success(root, tmp_path):
    assert check(root, tmp_path).returncode == 1


def test_the_tree_is_clean(root):
    r = check(root, root)
    assert r.returncode == 0, r.stdout
