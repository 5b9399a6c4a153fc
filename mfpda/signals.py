"""Ctrl-C and SIGTERM, with which schedulers end a run: how they reach one."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Received:
    """What has come: a wish to stop, and whether the program is to end with it. ``noted``: it is looked at later."""

    def __init__(self, noted: bool) -> None:
        self.noted = noted
        self.interrupted = False
        self.terminated = False


@contextlib.contextmanager
def heeded(noted: bool) -> Iterator[Received]:
    """Inside, SIGTERM raises KeyboardInterrupt as Ctrl-C does; or both are ``noted`` alone, to be looked at later.

    In the main thread only, and only where the program has no handlers of its own.
    """
    received = Received(noted)

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
