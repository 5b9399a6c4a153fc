"""What bad input and failed runs raise, and the statuses a run can end in."""

import difflib
import enum
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """A mistake in what the user gave, found before anything was compiled.

    Every message says what was expected, what was found, and what to do about it.

    >>> raise InputError("a positive temperature", "-1.0", "Give the factor of the KL term, 0.01 say.")
    Traceback (most recent call last):
    mfpda.errors.InputError: Expected a positive temperature, found -1.0. Give the factor of the KL term, 0.01 say.
    """

    def __init__(self, expected: str, found: str, advice: str):
        super().__init__(f"Expected {expected}, found {found}. {advice}")


class NotConvexWarning(UserWarning):
    """A loss was seen to be non-convex in its prediction: no claim of global optimality holds for it."""


class HighDimensionWarning(UserWarning):
    """An estimator was used in more dimensions than it works in."""


class Status(enum.Enum):
    """How a run ended. ``advice`` says what to do about it."""

    FINISHED = "finished"
    CERTIFIED = "certified"
    INTERRUPTED = "interrupted"
    DIVERGED = "diverged"
    FAILED = "failed"

    @property
    def advice(self) -> str:
        return _ADVICE[self]


_ADVICE = {
    Status.FINISHED: "All outer steps were done.",
    Status.CERTIFIED: "The upper bound on the gap fell below stop_at_gap; fit(..., resume=this_fit) goes on from here.",
    Status.INTERRUPTED: "The run was stopped by hand; fit(..., resume=this_fit) goes on from here.",
    Status.DIVERGED: (
        "Particles or predictions became infinite or NaN; this is the last finite state. Give a smaller step_size than "
        "the last one recorded, or a higher temperature, and check that h(theta, x) is bounded: an unbounded output, "
        "such as a positive scale times tanh, can make exp(-V) improper or too steep to follow."
    ),
    Status.FAILED: "What was raised stands above; everything recorded before it is in this fit.",
}


class CertificateStatus(enum.Enum):
    """Whether a certificate has a number, and if not, why. ``advice`` says what to raise."""

    CERTIFIED = "certified"
    DEGENERATE = "too few effective samples"
    DISAGREEMENT = "the replicates disagree"
    HEAVY_TAILED = "a few outputs outweigh all others"
    INFEASIBLE = "the dual lies outside the domain of the loss's conjugate"
    NOT_CONVEX = "the loss is not convex"

    @property
    def advice(self) -> str:
        return _CERTIFICATE_ADVICE[self]


_CERTIFICATE_ADVICE = {
    CertificateStatus.CERTIFIED: "The upper bound holds at its level.",
    CertificateStatus.DEGENERATE: (
        "Tempering lost its particles on the way from the prior, or could not move them. Raise particles= (1000 is the "
        'least by default), give the moves a smaller step (or "auto"), and check that h(theta, x) is finite wherever '
        "the prior has mass."
    ),
    CertificateStatus.HEAVY_TAILED: (
        "Means of such outputs have errors that no sample shows. Bound h(theta, x), as the paper supposes, by tanh say."
    ),
    CertificateStatus.DISAGREEMENT: (
        "Independent samples of the fitted density predict differently, so none of them can be trusted. Raise "
        "particles=, or the moves at each temperature: certify(..., temper=Temper(moves=20))."
    ),
    CertificateStatus.INFEASIBLE: "Its dual value is -infinity, a true but useless bound: give averages of l'(z, y).",
    CertificateStatus.NOT_CONVEX: "The gap then bounds nothing. Use a convex loss for a claim of global optimality.",
}


class RunError(RuntimeError):
    """A run that did not finish. ``fit`` is everything it had done, ready to save, look at or resume."""

    def __init__(self, fit: Any, reason: str = ""):
        self.fit = fit
        super().__init__(
            f"The run {fit.status.value} after outer step {fit.outer_steps}{reason.rstrip('. ')}. {fit.status.advice} "
            "The fit so far is on this error as .fit, and fit(..., throw=False) returns it instead of raising."
            + (f" Its checkpoint is in {str(fit.folder)!r}." if fit.folder else "")
        )


class Terminated(SystemExit):
    """SIGTERM ended a run, and ends the program. ``fit`` is everything it had done."""

    def __init__(self, fit: Any):
        self.fit = fit
        super().__init__(143)  # 128 + SIGTERM, as shells know it


def reason(error: Exception) -> str:
    """Why a function of the user's could not be called, in one line."""
    return f"{type(error).__name__} when it was called: " + str(error).strip().split("\n")[0].rstrip(".")


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known name that this one was probably meant to be, whatever the case of its letters, if there is one."""
    names = {each.lower(): each for each in known}
    return [names[near] for near in difflib.get_close_matches(name.lower(), names, n=1)]


def listed(names: Iterable[object]) -> str:
    """Names in the order given, for a message."""
    return ", ".join(repr(name) for name in names) or "none"
