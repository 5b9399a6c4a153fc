"""What a run records of its outer steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jax import Array

from mfpda.core import positive_count
from mfpda.errors import InputError, listed
from mfpda.problem import Neuron

# gradients: evaluations of grad V per particle in this outer step, including those of the start and of a new V
OUTER_STATS = (
    "risk",
    "second_moment",
    "stiffness",
    "particles",
    "step_size",
    "inner_steps",
    "acceptance_rate",
    "diverging",
    "gradients",
    "seconds",
)
FIRST_CERTIFIED = 5  # the outer step of the first certificate, if the user names none
CERTIFICATE_STATS = (
    "certified",
    "gap",
    "gap_stderr",
    "gap_upper",
    "gap_asked",
    "objective",
    "objective_stderr",
    "dual_value",
)


@dataclass(frozen=True)
class Record:
    """Which outer steps, sites and particles a run records.

    It records every ``every``-th outer step and the last one. ``sites`` and ``particles`` thin the history only: the
    final particles are always kept whole.

    >>> Record(every=10, sites=("w",), particles=100)
    Record(every=10, sites=('w',), particles=100)
    """

    every: int = 1
    sites: Sequence[str] | None = None
    particles: int | None = None

    def __post_init__(self):
        positive_count(self.every, "Record.every")
        if self.particles is not None:
            positive_count(self.particles, "Record.particles")

    def kept_sites(self, neuron: Neuron) -> tuple[str, ...]:
        names = neuron.site_names
        wanted = tuple(names if self.sites is None else self.sites)
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise InputError(f"sites of the neuron ({listed(names)}) in Record", listed(unknown), "Correct the names.")
        return wanted

    def thin(self, sites: Sequence[str], values: Mapping[str, Array]) -> dict[str, np.ndarray]:
        return {name: np.asarray(values[name][: self.particles]) for name in sites}


def certifies(t: int, certify_every: int | None, ends: Sequence[int]) -> bool:
    """Whether a run certifies outer step t: every ``certify_every``-th step and the last, or no step if it is 0.

    None means steps 5, 10, 15, 20, 30, 40, 60 and so on, so that certificates cost no more than a share of the run.
    ``ends`` are the run's lengths in successive calls of ``fit``.

    >>> [t for t in range(1, 31) if certifies(t, None, [30])]
    [5, 10, 15, 20, 30]
    """
    if certify_every == 0:
        return False
    if t in ends:
        return True
    if certify_every is not None:
        return t % certify_every == 0
    times, rest = divmod(t, FIRST_CERTIFIED)
    return rest == 0 and bin(times).strip("0b") in ("1", "11")  # 2^k and 3 * 2^k


def recorded_steps(every: int, certify_every: int | None, ends: Sequence[int], after: int = 0) -> list[int]:
    """The outer steps after ``after`` that a run records: every ``every``-th, those it certifies, and the last.

    A step that was once the last stays recorded.

    >>> recorded_steps(3, 0, [4, 7])
    [3, 4, 6, 7]
    """
    steps = range(after + 1, max(ends) + 1)
    return [t for t in steps if t % every == 0 or t in ends or certifies(t, certify_every, ends)]


class Row(NamedTuple):
    """The state after one outer step, as recorded."""

    outer_step: int
    stats: dict[str, float]
    particles: Mapping[str, np.ndarray]
