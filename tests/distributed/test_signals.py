"""Ctrl-C and SIGTERM inside a run: recorded while they are deferred, raised afterwards; handlers are put back."""

import os
import signal
import threading

import pytest

from mfpda.distributed.signals import StopRequest, catch_stop_signals

pytestmark = pytest.mark.quick

BOTH = pytest.mark.parametrize(
    ("number", "terminated"), [(signal.SIGINT, False), (signal.SIGTERM, True)], ids=["SIGINT", "SIGTERM"]
)


@pytest.fixture(autouse=True)
def _usual_handlers():
    """Those of a program in the foreground: in a job of the background SIGINT is ignored."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    earlier = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in usual.items():
        assert signal.getsignal(number) is handler  # whatever the test did
    for number, handler in earlier.items():
        signal.signal(number, handler)


def send(number):
    os.kill(os.getpid(), number)


@BOTH
def test_a_deferred_signal_is_recorded(number, terminated):
    with catch_stop_signals() as request:
        assert (request.deferred, request.interrupted, request.terminated) == (True, False, False)
        send(number)
        assert (request.interrupted, request.terminated) == (True, terminated)


@BOTH
def test_a_recorded_signal_is_raised_when_it_is_no_longer_deferred(number, terminated):
    with catch_stop_signals() as request:
        send(number)
        request.defer(True)
        with pytest.raises(KeyboardInterrupt):
            request.defer(False)


@BOTH
def test_a_signal_that_is_not_deferred_is_raised(number, terminated):
    with catch_stop_signals() as request:
        request.defer(False)
        with pytest.raises(KeyboardInterrupt):
            send(number)
        request.deferred = True
        send(signal.SIGINT)  # a second one, while the run writes its last checkpoint
        assert (request.interrupted, request.terminated) == (True, terminated)


def test_handlers_are_put_back_also_after_an_error():
    def failing():
        with catch_stop_signals():
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_program_s_own_handler_is_left_alone():
    called = []
    earlier = signal.signal(signal.SIGTERM, lambda *_: called.append(1))
    try:
        with catch_stop_signals() as request:
            request.defer(False)
            send(signal.SIGTERM)
            assert (called, request.interrupted) == ([1], False)
    finally:
        signal.signal(signal.SIGTERM, earlier)


def test_another_thread_installs_no_handlers():
    seen = []

    def run():
        with catch_stop_signals() as request:
            seen.append((signal.getsignal(signal.SIGTERM), request.deferred))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(signal.SIG_DFL, True)]


def test_nothing_is_raised_where_nothing_came():
    request = StopRequest()
    request.defer(False)
    request.defer(True)
    assert not request.interrupted
