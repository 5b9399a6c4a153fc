import numpy as np
import pytest

from mfpda.core.schedules import Constant, InverseSqrt, Linear, parse, values
from mfpda.errors import InputError

pytestmark = pytest.mark.quick


def test_values_at_every_outer_step():
    np.testing.assert_allclose(values(InverseSqrt(0.2), 4, "step_size"), [0.2, 0.2 / 2**0.5, 0.2 / 3**0.5, 0.1])
    assert values(Linear(slope=2.5, base=1), 3, "inner_steps", whole=True).tolist() == [4, 6, 9]
    assert values(7, 2, "inner_steps", whole=True).tolist() == [7, 7]
    assert values(lambda t: t**2, 3, "inner_steps", whole=True).tolist() == [1, 4, 9]


def test_command_line_form():
    assert parse("0.5") == 0.5
    assert parse("linear:5,2") == Linear(5, 2)
    assert parse("constant:3") == Constant(3)


@pytest.mark.parametrize("wrong", ["fast", "linear:x", "square:2", "constant:1,2"])
def test_a_command_line_form_that_is_not_known_is_refused(wrong):
    with pytest.raises(InputError, match="inverse_sqrt"):
        parse(wrong)


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), "many", True, lambda t: 3 - t])
def test_numbers_must_be_positive_and_finite(wrong):
    with pytest.raises(InputError, match="positive"):
        values(wrong, 3, "step_size")


def test_a_schedule_that_fails_late_says_when():
    with pytest.raises(InputError, match="outer step 5"):
        values(lambda t: 5.0 - t, 10, "step_size")


def test_more_steps_than_a_counter_holds_are_refused():
    with pytest.raises(InputError, match="at most 2147483647 as inner_steps"):
        values(lambda t: 3e9, 2, "inner_steps", whole=True)
