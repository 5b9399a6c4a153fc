"""A run in several processes: start them all on this machine, or join those of other machines.

Every process runs the same command. ``mfpda.distributed.mesh`` shows how they share particles and stop together.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import IO

from mfpda.core import positive_count
from mfpda.distributed import mesh as devices
from mfpda.errors import InputError

PATIENCE = 10.0  # seconds that the others have to exit by themselves after one has failed


def check(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Refuse options that do not say where process 0 is, how many processes there are, or which one this is."""
    if coordinator is None and process is not None:
        raise InputError("--coordinator HOST:PORT with --process", "none", "Give the address of process 0.")
    if coordinator is not None and (processes is None or process is None):
        missing = "--processes" if processes is None else "--process"
        raise InputError("--processes N and --process K with --coordinator", f"no {missing}", "Give all three.")
    if processes is not None and not 0 <= (process or 0) < positive_count(processes, "processes"):
        expected = f"a --process from 0 to {processes - 1}, of {processes} processes"
        raise InputError(expected, str(process), "Give each process its own number, from 0.")


@contextlib.contextmanager
def joined(coordinator: str, processes: int, process: int) -> Iterator[None]:
    """Run the block as one of several processes. If it fails, exit at once: a normal exit waits for the others."""
    devices.connect(coordinator, processes, process)
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            print("mfpda: interrupted before the run began", file=sys.stderr)
        elif isinstance(error, InputError) or devices.is_lost(error):  # lost: another process died
            print(f"mfpda: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(2 if isinstance(error, InputError) else 1)


def end_with_parent() -> None:
    """Exit when standard input closes. The process that started this one keeps it open."""

    def watch():
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def launch(arguments: Sequence[str], processes: int) -> int:
    """Run ``mfpda *arguments`` in several processes on this machine and return the exit code.

    Process 0 writes to this terminal. The output of another is shown if it fails, unless process 0 refused the same
    input. SIGINT and SIGTERM are passed on to all. If one process fails, the others are ended.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:  # finds a free port
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with contextlib.ExitStack() as stack:
        outputs = [None, *(stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, processes))]
        started = (_start(arguments, address, process, out) for process, out in enumerate(outputs))
        children = [stack.enter_context(child) for child in started]
        stack.enter_context(_passed_on(children))
        first = _wait(children)
        if first is None:
            return 0
        ended = _end(children)
        codes = [child.returncode for child in children]
        for process, out in enumerate(outputs):
            if out is not None and process not in ended and codes[process] not in (0, 2 if codes[0] == 2 else 0):
                out.seek(0)
                sys.stderr.write(out.read().decode(errors="replace"))
    killed = [process for process, code in enumerate(codes) if code < 0 and process not in ended]
    first = killed[0] if killed else first  # the cause, even if another was seen to fail first
    if killed or ended:
        how = f"was ended by {signal.Signals(-codes[first]).name}" if codes[first] < 0 else f"failed ({codes[first]})"
        others = f"; ended with it: {', '.join(map(str, ended))}" if ended else ""
        print(f"mfpda: process {first} of {processes} {how}{others}", file=sys.stderr)
    return codes[0] if codes[0] > 0 else 1


def _start(arguments: Sequence[str], address: str, process: int, out: IO[bytes] | None) -> subprocess.Popen:
    joining = ("--coordinator", address, "--process", str(process), "--launched")
    return subprocess.Popen(
        [sys.executable, "-m", "mfpda", *arguments, *joining],
        stdin=subprocess.PIPE,  # never written to: it closes when this process ends, for whatever reason
        stdout=out,
        stderr=out,
        start_new_session=True,  # Ctrl-C then reaches the children only once, through this process
    )


@contextlib.contextmanager
def _passed_on(children: list[subprocess.Popen]) -> Iterator[None]:
    def pass_on(number: int, frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    earlier = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _wait(children: list[subprocess.Popen]) -> int | None:
    """Wait until all have ended or one has failed. Return the number of the first that failed."""
    while True:
        codes = [child.poll() for child in children]
        failed = [process for process, code in enumerate(codes) if code]
        if failed or None not in codes:
            return failed[0] if failed else None
        time.sleep(0.05)


def _end(children: list[subprocess.Popen]) -> list[int]:
    """Wait for the running processes, and kill those that do not exit in time. Return the killed ones."""
    deadline = time.monotonic() + PATIENCE
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    running = [process for process, child in enumerate(children) if child.poll() is None]
    for process in running:
        children[process].kill()
        children[process].wait()
    return running
