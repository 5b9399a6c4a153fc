"""Schedules: step sizes and inner step counts as functions of the outer step t = 1, 2, ...

A schedule is any function of t. This module has those of the paper (Section 5.1): the number of inner steps T_t grows
with t, and the step size eta_t falls like 1/sqrt(t). They are dataclasses, so they can be printed and saved.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mfpda.errors import InputError

MOST_STEPS = 2**31 - 1  # inner steps per outer step: the limit of a 32-bit loop counter
Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    """The same number at every outer step."""

    value: float

    def __call__(self, t: int) -> float:
        return self.value


@dataclass(frozen=True)
class Linear:
    """``base + slope * t``.

    >>> [Linear(slope=5)(t) for t in (1, 2, 3)]
    [5.0, 10.0, 15.0]
    """

    slope: float
    base: float = 0.0

    def __call__(self, t: int) -> float:
        return self.base + self.slope * t


@dataclass(frozen=True)
class InverseSqrt:
    """``scale / sqrt(t)``.

    >>> [InverseSqrt(scale=0.1)(t) for t in (1, 4)]
    [0.1, 0.05]
    """

    scale: float

    def __call__(self, t: int) -> float:
        return self.scale / math.sqrt(t)


NAMED = {"constant": Constant, "linear": Linear, "inverse_sqrt": InverseSqrt}


def parse(text: str) -> float | Schedule:
    """Read a number or a schedule from the command line: ``0.01``, ``linear:5``, ``inverse_sqrt:0.1``.

    >>> parse("linear:5")
    Linear(slope=5.0, base=0.0)
    """
    name, colon, numbers = text.partition(":")
    try:
        return NAMED[name](*map(float, numbers.split(","))) if colon else float(text)
    except (KeyError, ValueError, TypeError):
        expected = "a number, or a schedule as one of " + ", ".join(f"{known}:NUMBER" for known in NAMED)
        advice = "Write 0.01, linear:5 (5 t) or inverse_sqrt:0.1 (0.1 / sqrt(t)), for example."
        raise InputError(expected, repr(text), advice) from None


def values(schedule: float | Schedule, outer_steps: int, name: str, whole: bool = False) -> np.ndarray:
    """Evaluate the schedule at t = 1..outer_steps, rounded up if ``whole``. Values must be positive and finite."""
    if callable(schedule):
        numbers = np.array([positive(schedule(t), f"{name} at outer step {t}") for t in range(1, outer_steps + 1)])
    else:
        numbers = np.full(outer_steps, positive(schedule, name))
    if not whole:
        return numbers
    if not callable(schedule) and numbers[0] != round(numbers[0]):
        raise InputError(f"a whole number as {name}", repr(schedule), "Counts have no fractions.")
    if np.max(numbers) > MOST_STEPS:
        raise InputError(f"at most {MOST_STEPS} as {name}", f"{np.max(numbers):.3g}", "Use fewer steps.")
    return np.ceil(numbers - 1e-9).astype(int)


def positive(number: object, name: str) -> float:
    """Return the number as a float. Refuse it unless it is positive and finite."""
    try:
        value = math.nan if isinstance(number, (str, bool)) else float(number)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"a positive finite number as {name}", repr(number), "Give a number above zero.")
    return value


def check_share(share: object) -> None:
    """Refuse a number that is not between 0 and 1. Values of other types, such as tracers, pass unchecked."""
    if isinstance(share, (int, float, str)) and not 0 < positive(share, "share") < 1:
        raise InputError("a share between 0 and 1", repr(share), "0.5 keeps half the effective sample size.")


def positive_count(number: object, name: str) -> int:
    """Return the number as an int. Refuse it unless it is whole and at least 1."""
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
        raise InputError(f"a whole number of at least 1 as {name}", repr(number), "Give an int such as 50.")
    return int(number)
