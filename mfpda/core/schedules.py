"""Numbers that depend on the outer step t = 1, 2, ...: step sizes and inner step counts.

A schedule is any function of t. These are the ones the paper uses (Section 5.1: the number of inner steps T_t grows
with t and the step size eta_t falls with 1/sqrt(t)); being dataclasses, they print and save as themselves.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mfpda.errors import InputError

MOST_STEPS = 2**31 - 1  # of one outer step: what a 32-bit loop counter holds
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
    """A number or a named schedule from the command line: ``0.01``, ``linear:5``, ``inverse_sqrt:0.1``.

    >>> parse("linear:5")
    Linear(slope=5.0, base=0.0)
    """
    name, colon, numbers = text.partition(":")
    try:
        if not colon:
            return float(text)
        return NAMED[name](*(float(number) for number in numbers.split(",")))
    except (KeyError, ValueError, TypeError):
        raise InputError(
            "a number, or a schedule as one of " + ", ".join(f"{known}:NUMBER" for known in NAMED),
            repr(text),
            "Write 0.01, linear:5 (5 t) or inverse_sqrt:0.1 (0.1 / sqrt(t)), for example.",
        ) from None


def values(schedule: float | Schedule, outer_steps: int, name: str, whole: bool = False) -> np.ndarray:
    """The schedule at t = 1..outer_steps, each checked to be positive and finite; rounded up where ``whole``."""
    function = schedule if callable(schedule) else Constant(schedule)
    numbers = np.empty(outer_steps)
    for t in range(1, outer_steps + 1):
        numbers[t - 1] = positive(function(t), f"{name} at outer step {t}" if callable(schedule) else name)
    if whole:
        if not callable(schedule) and numbers[0] != round(numbers[0]):
            raise InputError(f"a whole number as {name}", repr(schedule), "Counts have no fractions.")
        most = float(np.max(numbers))
        if most > MOST_STEPS:
            raise InputError(f"at most {MOST_STEPS} as {name}", f"{most:.3g}", "No run takes that many steps.")
        return np.ceil(numbers - 1e-9).astype(int)
    return numbers


def positive(number: object, name: str) -> float:
    """This number as a float, refused unless it is positive and finite."""
    try:
        value = math.nan if isinstance(number, (str, bool)) else float(number)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"a positive finite number as {name}", repr(number), "Give a number above zero.")
    return value


def check_share(share: Any) -> None:
    """Refuse a number that is no part of a whole; what is no number (a tracer, say) is let pass."""
    if isinstance(share, (int, float, str)) and not 0 < positive(share, "share") < 1:
        raise InputError("a share between 0 and 1", repr(share), "0.5 lets weights halve the sample, say.")


def positive_count(number: object, name: str) -> int:
    """This number as an int, refused unless it is whole and at least 1."""
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
        raise InputError(f"a whole number of at least 1 as {name}", repr(number), "Give an int such as 50.")
    return int(number)
