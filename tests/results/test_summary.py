"""The summary says what a person should know."""

import jax
import numpyro.distributions as dist

import mfpda


def test_a_run_that_stopped_before_its_stiffness_says_so(small):
    """Stiffness here is about 40: a run of 8 steps is warned of, one of 100 is not, and neither is another rule."""
    runs = {
        (steps, rule): mfpda.fit(
            jax.random.key(0), small.model, small.data, **small.quick | {"rule": rule, "outer_steps": steps}
        )
        for steps, rule in ((8, "dual_averaging"), (100, "dual_averaging"), (8, "latest"))
    }
    stiffness = runs[100, "dual_averaging"].rows[-1].stats["stiffness"]
    assert 8 < stiffness < 100
    warned = {name: "before its stiffness" in mfpda.summary(fit) for name, fit in runs.items()}
    assert warned == {(8, "dual_averaging"): True, (100, "dual_averaging"): False, (8, "latest"): False}


def test_many_coordinates_are_cut(small):
    sites = {"w": dist.Normal(0, 1).expand([30]).to_event(1)}
    model = mfpda.Model.from_function(lambda theta, x: theta["w"][0] * x[0], sites, mfpda.losses.Squared(), 1.0)
    fit = mfpda.fit(jax.random.key(0), model, small.data, **(small.quick | {"outer_steps": 1}))
    assert mfpda.summary(fit).endswith("... and 18 more coordinates")
