# SPDX-License-Identifier: Apache-2.0
"""service - what the scripts of the brokers share: free ports, processes by pid, certificates."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def fail(why):
    print(f"{os.path.basename(sys.argv[0])}: {why}", file=sys.stderr)
    sys.exit(1)


def free_ports(n):
    """n ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def alive(pid):
    try:
        os.kill(pid, 0)
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        return stat.rsplit(")", 1)[1].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def read_pid(path):
    try:
        return int(pathlib.Path(path).read_text())
    except (OSError, ValueError):
        return 0


def end(pid, how=signal.SIGTERM, within=20.0):
    """Ends a process; with SIGKILL if it does not go. A stopped one is woken first."""
    if not pid or not alive(pid):
        return
    os.kill(pid, signal.SIGCONT)
    os.kill(pid, how)
    until = time.monotonic() + within
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    if alive(pid):
        os.kill(pid, signal.SIGKILL)


def spawn(argv, log, env=None):
    """A process of its own session; its pid."""
    with open(log, "ab") as out:
        return subprocess.Popen(
            argv, cwd="/", env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        ).pid


def watch(pid, folder, stop):
    """When that process has ended: stop() and the folder is removed. Returns in the caller only."""
    if os.fork():
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.chdir("/")
    while alive(pid) and os.path.isdir(folder):
        time.sleep(1)
    stop()
    shutil.rmtree(folder, ignore_errors=True)
    pathlib.Path(f"{folder}.lock").unlink(missing_ok=True)
    os._exit(0)


def openssl(folder, *args, data=None):
    if not shutil.which("openssl"):
        skip("there is no openssl command")
    r = subprocess.run(["openssl", *args], cwd=folder, input=data, capture_output=True, check=False)
    if r.returncode:
        fail(f"openssl {args[0]}: {r.stderr.decode(errors='replace')}")
    return r.stdout


def certificates(folder):
    """A CA of its own, a server's certificate for localhost and 127.0.0.1, and a client's."""
    tls = pathlib.Path(folder) / "tls"
    if tls.exists():
        return tls
    tls.mkdir()
    openssl(
        tls, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt",
        "-subj", "/CN=outbox test CA", "-days", "30",
    )
    for name, ext in (("server", "subjectAltName=DNS:localhost,IP:127.0.0.1"), ("client", "extendedKeyUsage=clientAuth")):
        openssl(tls, "req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (tls / f"{name}.ext").write_text(ext + "\n")
        openssl(
            tls, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "30", "-extfile", f"{name}.ext", "-out", f"{name}.crt",
        )
    return tls
