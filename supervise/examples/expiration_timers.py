"""A client of forebear's expiration timers, and a worker that uses it; the standard library is enough.

    forebear-agent --nproc 2 -- python3 supervise/examples/expiration_timers.py

In the first attempt worker 1 is stuck in a block that may take a fifth of a second. The agent kills it, and starts the group again.
docs/timer-protocol.md describes what goes over the socket.
"""

import contextlib
import itertools
import json
import os
import socket
import struct
import sys
import threading
import time


class Refused(Exception):
    """The server does not want this client; the text is the number of its reason."""


class Timers:
    """Timers of this process at the server that the environment names."""

    def __init__(self, path=None):
        self.path = path or os.environ["FOREBEAR_TIMERS"]
        self.lock = threading.Lock()
        self.holders = itertools.count(1)
        self.line = self.pid = None

    def _connect(self):
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.settimeout(10)
        line.connect(self.path)
        answer = line.recv(64)  # nothing may be sent before the welcome
        if len(answer) != 8 or answer[:4] != b"fbt\x01" or answer[4] != 2:
            raise Refused(answer[5:6].hex() or "no answer")
        self.line, self.pid = line, os.getpid()

    def _say(self, scope, deadline, holder):
        message = struct.pack("<4sBBHqiiQ", b"fbt\x01", 1, 2, 0, deadline, 0, 0, holder) + scope.encode()
        with self.lock:
            if self.pid != os.getpid():  # a forked child must not speak on its parent's connection
                self._connect()
            self.line.send(message)

    @contextlib.contextmanager
    def expires(self, after, scope=None):
        """This process is killed if the block takes longer than `after` seconds."""
        caller = sys._getframe(2)
        scope = scope or f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
        holder = next(self.holders)  # so that a block within the same block has a timer of its own
        self._say(scope, time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(after * 1e9), holder)
        try:
            yield
        finally:
            self._say(scope, -1, holder)


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    timers = Timers()
    with timers.expires(60):
        with timers.expires(60):
            total = sum(range(rank, 1000, size))
    if attempt == 0 and rank == 1:
        with timers.expires(0.2, "stuck"):
            while True:
                pass
    with open(os.environ["FOREBEAR_RESULT_FILE"], "w") as result:
        json.dump({"rank": rank, "attempt": attempt, "sum": total}, result)


if __name__ == "__main__":
    main()
