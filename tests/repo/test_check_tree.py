# SPDX-License-Identifier: Apache-2.0
"""The check of every file finds each kind of finding, and nothing in the tree as it is."""

import subprocess

import pytest

HEAD = "/* SPDX-License-Identifier: Apache-2.0 */\n/* a - a file. */\n"
BAD = [
    ("too long", "src/core/a.c", HEAD + "\n" * 700, "longer than 700"),
    ("no licence", "src/core/a.c", "/* a - a file. */\n", "no SPDX line"),
    ("no purpose", "src/core/a.c", HEAD.splitlines()[0] + "\nint a;\n", "name - purpose"),
    ("a tab", "src/core/a.c", HEAD + "\tint a;\n", "tab"),
    ("path of a machine", "docs/a.md", "see /ho" "me/jane/outbox\n", "path of a machine"),
    ("path of root", "docs/a.md", "see `/ro" "ot/x`\n", "path of a machine"),
    ("no line feed", "docs/a.md", "a", "no line feed"),
]


def check(root, tree):
    return subprocess.run(
        ["/usr/bin/python3", str(root / "tools" / "check-tree"), str(tree)],
        capture_output=True, text=True, check=False,
    )


@pytest.mark.parametrize("path,text,want", [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_finding(root, tmp_path, path, text, want):
    p = tmp_path / path
    p.parent.mkdir(parents=True)
    p.write_text(text)
    r = check(root, tmp_path)
    assert r.returncode == 1
    assert f"{path}:" in r.stdout and want in r.stdout


def test_a_good_file_passes(root, tmp_path):
    (tmp_path / "a.c").write_text(HEAD + "int a; /* a/root/b, ~/home/x, ./work/y */\n")
    r = check(root, tmp_path)
    assert (r.returncode, r.stdout) == (0, "")


def test_the_tree_is_clean(root):
    r = check(root, root)
    assert r.returncode == 0, r.stdout
