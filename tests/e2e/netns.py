# SPDX-License-Identifier: Apache-2.0
"""netns - a host of its own in the test's machine: a network namespace with one cable to it that can be pulled."""

import os
import shutil
import subprocess

import pytest


def ip(*args, check=True):
    return subprocess.run(["ip", *args], check=check, capture_output=True, text=True)


class Host:
    """Programs in it reach the test's machine at `outside`; they are seen as `inside`."""

    made = 0

    def __init__(self):
        if not shutil.which("ip"):
            pytest.skip("skipped: there is no ip command; Debian calls it iproute2")
        Host.made += 1
        number = (os.getpid() * 16 + Host.made) % (1 << 15)  # of 198.18.0.0/15, which is for tests of networks
        self.name = f"outbox-{os.getpid()}-{Host.made}"
        self.cable, self.plug = f"ob{number}a", f"ob{number}b"
        base = (198 << 24) + (18 << 16) + number * 4
        self.outside, self.inside = (".".join(str(base + i >> s & 255) for s in (24, 16, 8, 0)) for i in (1, 2))
        try:
            ip("netns", "add", self.name)
            ip("link", "add", self.cable, "type", "veth", "peer", "name", self.plug, "netns", self.name)
            ip("addr", "add", f"{self.outside}/30", "dev", self.cable)
            ip("-n", self.name, "addr", "add", f"{self.inside}/30", "dev", self.plug)
            ip("-n", self.name, "link", "set", "lo", "up")
            ip("link", "set", self.cable, "up")
            ip("-n", self.name, "link", "set", self.plug, "up")
        except subprocess.CalledProcessError as e:
            self.close()
            pytest.skip(f"skipped: this machine makes no network namespace: {e.stderr.strip()}")

    def argv(self, *command):
        """The command in the namespace; `ip` becomes it, so its pid is the command's."""
        return ["ip", "netns", "exec", self.name, *map(str, command)]

    def vanish(self):
        """Its end of the cable is dead: nobody says good-bye, outside nothing but silence is seen."""
        ip("-n", self.name, "link", "set", self.plug, "down")

    def cut(self):
        """The outer end is dead: inside nothing but silence is seen."""
        ip("link", "set", self.cable, "down")

    def back(self):
        ip("-n", self.name, "link", "set", self.plug, "up")
        ip("link", "set", self.cable, "up")

    def close(self):
        ip("link", "del", self.cable, check=False)
        ip("netns", "del", self.name, check=False)
