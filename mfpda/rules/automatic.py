"""``rule="auto"``: the rule that suits the problem."""

import math

from mfpda.rules.base import Rule
from mfpda.rules.dual_averaging import DualAveraging
from mfpda.rules.dual_newton import DualNewton

LARGEST = 2**28  # numbers in H, a GiB in single precision; it is fixed, so that a resumed run chooses the same rule


def pick(
    is_stream: bool,
    batch_size: int | None,
    predictions: tuple[int, ...],
    particles: int,
    has_init: bool,
    only_kinks: bool,
) -> tuple[Rule, str]:
    """Choose a rule, and say why. ``predictions`` is the shape of all predictions, examples first.

    ``only_kinks`` says that the slope of the loss changes only in jumps.
    """
    if is_stream:
        return DualAveraging(), "examples are drawn from a stream"
    if batch_size is not None:
        return DualAveraging(), f"examples come in batches of {batch_size}"
    if has_init:
        return DualAveraging(), "the model has an init, and Newton's particles begin as draws of the prior"
    if only_kinks:
        return DualAveraging(), "the loss has kinks and no curvature, and Newton's method needs its second derivative"
    size = f"the outputs of {particles} particles at {predictions[0]} examples"
    if particles * math.prod(predictions) > LARGEST:
        return DualAveraging(), f"{size} are too many to keep, and Newton's method needs them repeatedly"
    return DualNewton(), f"every step sees all examples, and {size} can be kept"
