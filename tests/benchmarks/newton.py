"""What a step of Newton's method on the dual costs beside the kernel's steps, as ratios inside one process.

    python tests/benchmarks/newton.py

The update of ``DualNewton`` (outputs, the system, the trust region) over ten steps of MALA, for the squared and for the
logistic loss, from particles of the prior and from the state after a few outer steps. It should stay below 1.
"""

import jax
import jax.numpy as jnp

import mfpda
from mfpda import sampling
from mfpda.problem import Problem

try:
    from tests.benchmarks.inner_step import STEP_SIZE, by_mfpda, interleaved, problem
except ModuleNotFoundError:  # run as a script
    from inner_step import STEP_SIZE, by_mfpda, interleaved, problem


@jax.jit
def updated(state, given, thetas, rule):
    return rule.update(jax.random.key(0), state, jnp.ones(()), given.outputs(thetas), None, given)


def solve(n, d, particles, loss, outer_steps, rounds):
    model, x, y = problem(n, d)
    model = mfpda.Model(model.declaration.neuron, loss, model.temperature)
    x, y, key, rule = jnp.asarray(x), jnp.asarray(y), jax.random.key(0), mfpda.DualNewton()
    given, state = Problem.of(model, x, y), rule.init(n, ())
    thetas = sampling.draw_initial(key, particles, given)
    if outer_steps:
        arguments = {"particles": particles, "outer_steps": outer_steps, "progress": False}
        fit = mfpda.fit(key, model, (x, y), rule=rule, record=mfpda.Record(every=outer_steps), **arguments)
        state, thetas = fit.state.rule, fit.thetas
    potential = given.potential(rule.dual(state).g / n)
    kernel = mfpda.MALA(step_size=jnp.asarray(STEP_SIZE))
    medians = interleaved(
        {
            "update": lambda: updated(state, given, thetas, rule),
            "ten steps": lambda: by_mfpda(key, thetas, potential, kernel, 10),
        },
        rounds,
    )
    ratio = medians["update"] / medians["ten steps"]
    after = f"after {outer_steps} outer steps" if outer_steps else "at the prior"
    print(
        f"(n, d, M) = ({n}, {d}, {particles}), {type(loss).__name__}, {after}: "
        f"an update takes {1e3 * medians['update']:.0f} ms, {ratio:.3f} x ten steps of MALA"
    )
    return ratio


if __name__ == "__main__":
    for loss in (mfpda.losses.Squared(), mfpda.losses.Logistic()):
        for outer_steps in (0, 5):
            solve(10_000, 50, 1000, loss, outer_steps, rounds=7)
