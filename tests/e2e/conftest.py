# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the end-to-end tests."""

import os

import pytest

import helpers


def pytest_configure(config):
    if not os.access(helpers.BIN, os.X_OK):
        pytest.exit(f"no program at {helpers.BIN}: run make, or set OUTBOX_BIN", returncode=3)


@pytest.fixture
def outbox(tmp_path):
    """The program in a temporary folder; everything it started is ended afterwards, and a report of
    a sanitizer fails the test."""
    o = helpers.Outbox(tmp_path)
    yield o
    o.close()
