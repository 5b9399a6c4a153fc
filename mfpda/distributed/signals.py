"""How Ctrl-C and SIGTERM (which schedulers send) stop a run."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class StopRequest:
    """Whether a signal asked the run to stop (``interrupted``) and the program to end (``terminated``).

    While ``deferred`` is true, a signal is only recorded. Otherwise it raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.deferred = True
        self.interrupted = False
        self.terminated = False

    def defer(self, deferred: bool) -> None:
        """If ``deferred``, only record signals from now on. Otherwise raise pending and future ones."""
        self.deferred = deferred
        if self.interrupted and not deferred:
            raise KeyboardInterrupt


@contextlib.contextmanager
def catch_stop_signals(*numbers: signal.Signals) -> Iterator[StopRequest]:
    """Record these signals (by default Ctrl-C and SIGTERM) inside the block. After ``defer(False)``, raise them too.

    This works in the main thread only, and leaves a program's own handlers in place.
    """
    request = StopRequest()

    def stop(number: int, frame: FrameType | None) -> None:
        request.interrupted = True
        request.terminated |= number == signal.SIGTERM
        if not request.deferred:
            raise KeyboardInterrupt

    earlier = {}
    if threading.current_thread() is threading.main_thread():
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        for number in numbers or usual:
            if signal.getsignal(number) is usual[number]:
                earlier[number] = signal.signal(number, stop)
    try:
        yield request
    finally:
        for number, previous in earlier.items():
            signal.signal(number, previous)
