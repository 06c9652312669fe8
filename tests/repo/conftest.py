# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of tools, documentation and installation."""

import importlib.util
import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def root():
    return ROOT


@pytest.fixture
def build():
    """The folder that was built: the runner's, or that of make."""
    folder = pathlib.Path(os.environ.get("OUTBOX_BUILD", ROOT / "build"))
    assert (folder / "build.ninja").exists(), f"{folder} is not built: run make"
    return folder


@pytest.fixture
def runner():
    """tests/run.py as a module."""
    spec = importlib.util.spec_from_file_location("outbox_runner", ROOT / "tests" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
