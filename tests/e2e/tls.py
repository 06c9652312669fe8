# SPDX-License-Identifier: Apache-2.0
"""tls - certificates of a CA of the test's own."""

import os
import pathlib
import shutil
import subprocess

import pytest


class Authority:
    """Signs certificates; all files are in one folder."""

    def __init__(self, folder, name="ca"):
        if not shutil.which("openssl"):
            pytest.skip("skipped: there is no openssl command")
        self.dir, self.name = pathlib.Path(folder), name
        self.crt = str(self.dir / f"{name}.crt")
        self.run(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.crt",
            "-subj", f"/CN={name}", "-days", "2",
        )

    def run(self, *args):
        r = subprocess.run(["openssl", *args], cwd=self.dir, capture_output=True, text=True, check=False)
        assert r.returncode == 0, f"openssl {args}: {r.stderr}"

    def sign(self, file, cn, days=2):
        """file.crt and file.key for this common name; days < 0: it has expired."""
        self.run("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{file}.key", "-out", f"{file}.csr", "-subj", f"/CN={cn}")
        self.run(
            "x509", "-req", "-in", f"{file}.csr", "-CA", f"{self.name}.crt", "-CAkey", f"{self.name}.key",
            "-CAcreateserial", "-days", str(days), "-out", f"{file}.crt",
        )
        os.chmod(self.dir / f"{file}.key", 0o600)
        return str(self.dir / f"{file}.crt"), str(self.dir / f"{file}.key")
