# SPDX-License-Identifier: Apache-2.0
"""service - what the scripts share: free ports, processes by pid, certificates.

Every process of a server has OUTBOX_SERVICE=<its folder> in its environment, also those that a server starts
and forgets (RabbitMQ its port mapper): so all of them are found and ended, however the end comes. As a program:

  service.py watch PID DIR [SIGNAL]   in the background: ends them and removes DIR when that process has ended
  service.py end DIR [SIGNAL]         ends them now
"""

import contextlib
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


def marked(folder):
    """The processes of the server in that folder."""
    mark, found = f"OUTBOX_SERVICE={folder}".encode(), []
    for p in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int(p.name) != os.getpid() and mark in (p / "environ").read_bytes().split(b"\0"):
                found.append(int(p.name))
    return found


def end_marked(folder, how=signal.SIGKILL):
    """Ends all of them; also those that come up meanwhile."""
    for _ in range(100):
        going = [pid for pid in marked(folder) if alive(pid)]
        if not going:
            return
        for pid in going:
            with contextlib.suppress(OSError):
                end(pid, how)
        how = signal.SIGKILL


def watch(pid, folder, how=signal.SIGKILL):
    """When that process has ended, or the folder is gone: everything of the server ends and the folder is removed.
    In a session of its own, so that what ends its caller's group leaves it alone. Returns in the caller only."""
    if os.fork():
        return
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.chdir("/")
    while alive(pid) and os.path.isdir(folder):
        time.sleep(1)
    end_marked(folder, how)
    shutil.rmtree(folder, ignore_errors=True)
    pathlib.Path(f"{folder}.lock").unlink(missing_ok=True)
    os._exit(0)


@contextlib.contextmanager
def starting(folder, watched):
    """Around everything that starts: watched from the beginning, and what is new ends with a start that fails or is
    ended by a signal."""
    new = not (folder / "made.json").exists()
    os.environ["OUTBOX_SERVICE"] = str(folder)
    watching = folder / "watched"
    if watched and read_pid(watching) != watched:
        watching.write_text(str(watched))
        watch(watched, folder)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
        # It stands. A signal from here on would leave it behind with nobody told where; so the script ends as if it had come later.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except BaseException:
        if new:
            end_marked(folder)
            shutil.rmtree(folder, ignore_errors=True)
        raise


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


def main(command, *args):
    folder = args[-1] if len(args) == (2 if command == "watch" else 1) else args[-2]
    how = signal.Signals[args[-1]] if args[-1] != folder else signal.SIGKILL
    if command == "watch":
        watch(int(args[0]), folder, how)
    else:
        end_marked(folder, how)


if __name__ == "__main__":
    main(*sys.argv[1:])
