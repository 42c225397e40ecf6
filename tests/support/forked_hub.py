"""Hubs as forks of a process that has loaded their modules, which takes a second of each start.

In all else a fork is what `python -m edgehub` starts: folder, environment, log, signals and exit
code are its own. It is no child of the test: a monitor waits for it and passes its exit code on.
"""

from __future__ import annotations

import array
import atexit
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]
SERVE = "import sys; from tests.support.forked_hub import serve; serve(int(sys.argv[1]))"
REQUEST_BYTES_MAX = 1 << 17
FDS = 2

_lock = threading.Lock()


class ForkedHub:
    """A running fork, with the methods of `subprocess.Popen` that tests use.

    Args:
        arguments: Of `edgehub`.
        cwd: Working folder.
        env: All variables.
        stderr: Where the fork writes its log.
    """

    def __init__(
        self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], stderr: int
    ) -> None:
        request = json.dumps([list(arguments), str(cwd), dict(env)]).encode()
        self._status, written = os.pipe()
        try:
            with _lock:
                server = _server()
                fds = array.array("i", [stderr, written])
                server.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
                self.pid = int(server.recv(REQUEST_BYTES_MAX))
        finally:
            os.close(written)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None = it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: It goes on.
        """
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("edgehub", timeout or 0)
            self.returncode = int(os.read(self._status, 16))
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(_end, ours, process)
    return ours


def _end(server: socket.socket, process: subprocess.Popen[bytes]) -> None:
    server.close()
    process.wait()


def serve(number: int) -> None:
    """Fork hubs as they are asked for, until the other end is closed."""
    import edgehub.cli.run  # noqa: PLC0415 - loaded here and not in the test's process
    import edgehub.hub.hub  # noqa: F401, PLC0415 - likewise
    import tests.support.fast_clock  # noqa: F401, PLC0415 - likewise

    # A collection in a fork would copy what it looks at.
    gc.freeze()
    # Monitors are waited for by nobody.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=number) as requests:
        while True:
            request, fds, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, FDS)
            if not request:
                return
            if os.fork() == 0:
                _monitor(requests, json.loads(request), *fds)
            for each in fds:
                os.close(each)


def _monitor(
    requests: socket.socket,
    request: tuple[list[str], str, dict[str, str]],
    stderr: int,
    status: int,
) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        requests.close()
        os.close(status)
        os.dup2(stderr, 2)
        os.close(stderr)
        _run(*request)
    requests.send(b"%d" % pid)
    os.close(stderr)
    _, ended = os.waitpid(pid, 0)
    os.write(status, b"%d" % os.waitstatus_to_exitcode(ended))
    os._exit(0)


def _run(arguments: list[str], cwd: str, env: dict[str, str]) -> NoReturn:
    from edgehub.cli.main import main  # noqa: PLC0415 - see `serve`
    from tests.support import fast_clock  # noqa: PLC0415 - likewise

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if (setting := os.environ.pop(fast_clock.VARIABLE, None)) is not None:
        fast_clock.use(setting)
    code: object = 0
    try:
        main(arguments)
    except SystemExit as ended:
        code = ended.code
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    # To take apart what it shares with other forks would copy all of that.
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)
