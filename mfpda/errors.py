"""Errors for bad input and failed runs, and the statuses in which a run can end."""

import difflib
import enum
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """A mistake in the user's input, found before anything is compiled.

    Every message says what was expected, what was found, and what to do about it.

    >>> raise InputError("a positive temperature", "-1.0", "Give a number above zero.")
    Traceback (most recent call last):
    mfpda.errors.InputError: Expected a positive temperature, found -1.0. Give a number above zero.
    """

    def __init__(self, expected: str, found: str, advice: str):
        super().__init__(f"Expected {expected}, found {found}. {advice}")


class NotConvexWarning(UserWarning):
    """A loss was found to be non-convex in its prediction, so no claim of global optimality holds."""


class NotCertifiedWarning(UserWarning):
    """A run ended without the certificate that was asked for."""


class EarlierWasBetterWarning(UserWarning):
    """A run of a given length ended at a state whose gap is clearly above the bound of an earlier state."""


class UnsoundSampleWarning(UserWarning):
    """Tempering lost its particles or could not move them, so they are no sample of the density."""


class HighDimensionWarning(UserWarning):
    """An estimator was used in more dimensions than it can handle."""


class Advised(enum.Enum):
    """An enum whose members are a value in words and ``advice``, which says what to do about it."""

    advice: str

    def __new__(cls, value: str, advice: str = ""):
        member = object.__new__(cls)
        member._value_, member.advice = value, advice
        return member


class Status(Advised):
    """How a run ended."""

    FINISHED = "finished", "All outer steps were done. fit.certify(key) says how far the optimum is."
    CERTIFIED = (
        "certified",
        "The bound on the gap is as small as was asked for. fit.sample draws more particles of the fitted density.",
    )
    OUT_OF_STEPS = (
        "not certified: the bound is larger than was asked for",
        "The run reached its last outer step. Take more outer steps, more particles, a higher temperature, or ask for "
        "a larger bound.",
    )
    STALLED = (
        "not certified: the bound no longer falls",
        "The last certificates brought no smaller bound. Give more particles or a higher temperature, or ask for a "
        "larger bound.",
    )
    NO_BOUND = (
        "not certified: the certificates have no number",
        "print(fit.certificate) says why, and what to do.",
    )
    WORSE_THAN_PRIOR = (
        "not certified: worse than the prior",
        "L(q_g) is above L(prior). Give more particles or a higher temperature.",
    )
    INTERRUPTED = "interrupted", "It was stopped early; fit(..., resume=this_fit) continues the run."
    DIVERGED = (
        "diverged",
        "Particles or predictions became infinite or NaN; this is the last finite state. Give a smaller step_size than "
        "the last one recorded, or a higher temperature. Check that h(theta, x) is bounded: an unbounded output, such "
        "as a positive scale times tanh, can make exp(-V) improper or too steep to sample.",
    )
    IMPROPER = (
        "became improper",
        "Far away h(theta, x) outgrows the prior, so the Gibbs density has no finite integral and particles run away; "
        "this is the state one outer step before that was seen. Bound all factors of h but one, `jnp.tanh(a) * "
        "jax.nn.relu(w @ x + b)` for example, give a prior with lighter tails, or raise the temperature.",
    )
    FAILED = "failed", "The error is shown above. This fit holds everything recorded before it."

    @property
    def returns_best(self) -> bool:
        """Whether the run ended without the bound that was asked for. ``fit`` then returns the state with the best."""
        return self in (Status.OUT_OF_STEPS, Status.STALLED, Status.NO_BOUND, Status.WORSE_THAN_PRIOR)


class CertificateStatus(Advised):
    """Whether a certificate has a value, and if not, why."""

    CERTIFIED = "certified", "The upper bound holds at its level."
    DEGENERATE = (
        "too few effective samples",
        "Tempering from the prior lost its particles or could not move them. Raise particles= (the default is 1000). "
        'Or give the moves a smaller step, or "auto".',
    )
    NOT_FINITE = (
        "outputs or losses are not finite",
        "h(theta, x) or the loss is infinite or NaN at a particle of the fitted density. Check both at large theta.",
    )
    DISAGREEMENT = (
        "the replicates disagree",
        "Independent samples of the fitted density predict differently, so none of them can be trusted. Raise "
        "particles=, or the temperature. (Up to eight times the moves and temperatures were tried.)",
    )
    HEAVY_TAILED = (
        "a few outputs outweigh all others",
        "A sample cannot show the error of such means. Bound h(theta, x), as the paper assumes: use tanh, for example.",
    )
    IMPROPER = (
        "the fitted density is improper",
        "Far away h(theta, x) outgrows the prior, so the density has no finite integral, and no expectation. Bound all "
        "factors of h but one, `jnp.tanh(a) * jax.nn.relu(w @ x + b)` for example, give a prior with lighter tails, or "
        "raise the temperature.",
    )
    INFEASIBLE = (
        "the dual lies outside the domain of the loss's conjugate",
        "The dual value is -infinity, a valid but useless bound. Give a dual of averages of l'(z, y), like fit.dual.",
    )
    NOT_CONVEX = "the loss is not convex", "The gap then bounds nothing. Use a convex loss to claim global optimality."


class RunError(RuntimeError):
    """A run did not finish. ``fit`` holds everything it did, ready to be saved, inspected or resumed."""

    def __init__(self, fit: Any, reason: str = "", advice: str = ""):
        self.fit = fit
        super().__init__(
            f"The run {fit.status.value} after outer step {fit.outer_steps}{reason.rstrip('. ')}. "
            f"{advice or fit.status.advice} "
            "This error has the fit so far as .fit, and fit(..., throw=False) returns it instead of raising."
            + (f" Its checkpoint is in {str(fit.folder)!r}." if fit.folder else "")
        )


class Terminated(SystemExit):
    """SIGTERM stopped a run and ends the program. ``fit`` holds everything the run did."""

    def __init__(self, fit: Any):
        self.fit = fit
        super().__init__(143)  # 128 + SIGTERM, as in shells


def reason(error: Exception) -> str:
    """Say in one line why the user's function raised an error."""
    return f"{type(error).__name__} when it was called: " + str(error).strip().split("\n")[0].rstrip(".")


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """List the known name most similar to ``name``, if there is one. Case is ignored."""
    names = {each.lower(): each for each in known}
    return [names[near] for near in difflib.get_close_matches(name.lower(), names, n=1)]


def listed(names: Iterable[object]) -> str:
    """Join names for a message, in the order given."""
    return ", ".join(repr(name) for name in names) or "none"
