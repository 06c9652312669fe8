# SPDX-License-Identifier: Apache-2.0
"""Every trap and every guarantee names a test that exists."""

import re

import pytest

TEST_NAME = re.compile(r"`(tests/[\w./-]+)::([^`]+)`")
# The traps that concern flow, SQLite, the file sink, the relay or the configuration.
TRAPS = [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 43, 45, 46, 47, 48, 49, 50, 53, 55, 56, 57, 58, 60, 61, 62, 63, 64]


def named_tests(text):
    return TEST_NAME.findall(text)


def test_exists(root, file, name):
    path = root / file
    if not path.is_file():
        return False
    text = path.read_text(errors="replace")
    # A test function, or a named row of a table of cases.
    return re.search(rf'\b{re.escape(name)}\b\s*\(|"{re.escape(name)}"', text) is not None


test_exists.__test__ = False


@pytest.mark.parametrize("page", ["docs/traps.md", "ARCHITECTURE.md"])
def test_named_tests_exist(root, page):
    names = named_tests((root / page).read_text())
    assert len(names) > 10, f"{page} names hardly a test"
    missing = [f"{f}::{n}" for f, n in names if not test_exists(root, f, n)]
    assert missing == []


@pytest.mark.parametrize("number", TRAPS)
def test_every_trap_names_its_test(root, number):
    rows = re.findall(rf"^\| {number} \|.*$", (root / "docs" / "traps.md").read_text(), re.M)
    assert len(rows) == 1, f"trap {number} has {len(rows)} rows"
    assert named_tests(rows[0]), f"trap {number} names no test"


def test_a_missing_test_is_noticed(root):
    assert test_exists(root, "tests/repo/test_traps.py", "test_named_tests_exist")
    assert not test_exists(root, "tests/repo/test_traps.py", "no_" "such_test")
    assert not test_exists(root, "tests/repo/nothing.py", "test_named_tests_exist")
