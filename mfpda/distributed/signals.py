"""Ctrl-C and SIGTERM, with which schedulers end a run: how they reach one."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Received:
    """What has come: a wish to stop, and whether the program is to end with it.

    While it is ``noted``, it is looked at later; else it raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.noted = True
        self.interrupted = False
        self.terminated = False

    def heed(self, noted: bool) -> None:
        """From now on raise what comes, and what has come, unless it is to be noted on."""
        self.noted = noted
        if self.interrupted and not noted:
            raise KeyboardInterrupt


@contextlib.contextmanager
def heeded() -> Iterator[Received]:
    """Inside, SIGTERM is what Ctrl-C is; both are noted until they are to be heeded.

    In the main thread only, and only where the program has no handlers of its own.
    """
    received = Received()

    def stop(number: int, frame: FrameType | None) -> None:
        received.interrupted = True
        received.terminated |= number == signal.SIGTERM
        if not received.noted:
            raise KeyboardInterrupt

    earlier: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        for number, handler in usual.items():
            if signal.getsignal(number) is handler:
                earlier[number] = signal.signal(number, stop)
    try:
        yield received
    finally:
        for heard, handler in earlier.items():
            signal.signal(heard, handler)
