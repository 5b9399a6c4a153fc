"""Runs of the tests of devices, each in a process of its own.

``python -m tests.distributed.on_devices WHAT [COORDINATOR PROCESS]``.

JAX counts its devices once, so virtual ones and several processes need a Python of their own. Prints JSON.
"""

import json
import re
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import mfpda
from mfpda import sampling
from mfpda.distributed import mesh as devices
from mfpda.engine import outer_step
from mfpda.engine import run as running
from mfpda.engine.plan import Plan
from mfpda.kernels import KERNELS
from mfpda.problem import Problem
from mfpda.sampling import tuning

X = np.random.default_rng(0).normal(size=(40, 3))
SITES = {"w": dist.Normal(0, 1).expand([3]).to_event(1), "b": dist.Normal(0, 1)}
MODEL = mfpda.Model.from_function(
    lambda theta, x: jnp.tanh(x @ theta["w"] + theta["b"]), SITES, mfpda.losses.Squared(), 0.1
)
COLLECTIVE = re.compile(r" = (.*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")
CASES = [
    ("ula", {}),
    ("ula", {"batch_size": 10}),
    ("ula", {"batch_size": 10, "stream": True}),
    ("mala", {}),
    ("mala", {"batch_size": 10}),
    ("mala", {"batch_size": 10, "stream": True}),
    ("mala", {"start": "temper"}),
    ("ula", {"start": "resample"}),
    ("mala", {"rule": "dual_newton", "double": True}),  # in single precision another particle may be resampled
    ("blackjax:nuts", {"double": True}),  # its trajectories amplify rounding, in single precision to 3e-5
]


def draw(key, batch_size):
    x = jax.random.normal(key, (batch_size, 3))
    return x, jnp.sin(x[:, 0])


def fitted(kernel, stream=False, double=False, **arguments):
    data = mfpda.Stream(draw) if stream else (X, np.sin(X[:, 0]))
    given = {"particles": 64, "outer_steps": 20, "inner_steps": 10, "progress": False} | arguments
    with jax.enable_x64(double):
        return mfpda.fit(jax.random.key(0), MODEL, data, kernel=kernel, **given)


def numbers(fit):
    return {"thetas": np.asarray(fit.thetas).tolist(), "z": np.asarray(fit.predict(X)).tolist()}


def differences(cases, counts):
    """How far runs on so many devices are from the default one, relative to the largest number; and compilations."""
    found = []
    for kernel, arguments in cases:
        alone = numbers(fitted(kernel, **arguments))
        for count in counts:
            before = outer_step.outer_step._cache_size()
            metrics = {"at": lambda predict: predict(X[:1])[0]}
            fit = fitted(kernel, devices=jax.devices()[:count], metrics=metrics, **arguments)
            off = {
                name: float(np.abs(np.subtract(values, alone[name])).max() / np.abs(alone[name]).max())
                for name, values in numbers(fit).items()
            }
            ordinary = all(len(leaf.sharding.device_set) == 1 for leaf in jax.tree.leaves(fit.state))
            compiled = outer_step.outer_step._cache_size() - before
            metric = abs(fit.rows[-1].stats["at"] - alone["z"][0])
            found.append(
                {"case": f"{kernel} {arguments} {count}", "off": off, "compiled": compiled, "ordinary": ordinary,
                 "metric": metric, "status": fit.status.value}
            )  # fmt: skip
    return found


def collectives(program, loop):
    """The shapes that devices exchange in a compiled program: inside the loop of this name, and everywhere."""
    bodies, inside, name = {}, set(), None
    for line in program.splitlines():
        if line and not line[0].isspace() and "{" in line:
            name = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            bodies[name] = []
        elif name:
            bodies[name].append(line)
    exchanged = {name: [match.groups() for match in map(COLLECTIVE.search, lines) if match]
                 for name, lines in bodies.items()}  # fmt: skip
    called = {
        name: {word for line in lines for word in re.findall(r"%([\w.\-]+)", line.partition(" = ")[2])} & set(bodies)
        for name, lines in bodies.items()
    }
    loops = [line for lines in bodies.values() for line in lines if " while(" in line and f'op_name="{loop}"' in line]
    reached = [word for line in loops for word in re.findall(r"(?:condition|body)=%([\w.\-]+)", line)]
    while reached:
        if (name := reached.pop()) not in inside:
            inside.add(name)
            reached.extend(called[name])
    return {
        "loops": len(loops),
        "inside": [found for name in inside for found in exchanged[name]],
        "all": [found for each in exchanged.values() for found in each],
    }


def compiled(kernel):
    """What the devices exchange in an outer step with this kernel."""
    kernel = tuning.plan(kernel, 1)[0]
    mesh = devices.mesh_over(jax.devices(), 64)
    problem = Problem.of(MODEL, jnp.asarray(X, float), jnp.asarray(np.sin(X[:, 0]), float))
    rule = mfpda.DualAveraging()
    state = running._initial_state(jax.random.key(0), problem, None, kernel, rule, 64)
    state = Plan.placed(SimpleNamespace(mesh=mesh), state)
    step = outer_step.outer_step.lower(
        jax.random.key(0), np.int32(1), state, problem, None, kernel, rule, mfpda.Warm(), np.int32(3), mesh=mesh
    )
    return collectives(step.compile().as_text(), "jit(outer_step)/shard_map/while")


def pooled():
    """The same for a loop in which the step size does follow the acceptance of all particles."""
    mesh, kernel = devices.mesh_over(jax.devices(), 64), mfpda.MALA(jnp.asarray(0.1))
    potential = Problem.of(MODEL, jnp.asarray(X, float)).prior_potential()
    ensemble = jax.jit(sampling.begin)(jax.random.key(0), jnp.ones((64, 4)), potential, kernel)
    run = jax.jit(lambda *arguments: sampling.run(*arguments, tuning.towards_target))
    run = run.lower(jax.random.key(0), devices.spread(ensemble, mesh), potential, kernel, 3)
    return collectives(run.compile().as_text(), "jit(<lambda>)/while")


def joined(coordinator, process):
    """As one of two processes: a run, and one whose metric fails in process 1 alone."""
    devices.connect(coordinator, 2, process, timeout=60)
    calls = []

    def metric(predict):
        calls.append(1)
        if len(calls) == 4 and jax.process_index() == 1:
            raise ZeroDivisionError("no more")
        return predict(X[:1])[0]

    arguments = {"kernel": "mala", "batch_size": 10}
    half = fitted(**arguments, outer_steps=10)
    failed = fitted(**arguments, metrics={"at": metric}, throw=False)
    return {
        "whole": numbers(fitted(**arguments)),
        "resumed": numbers(fitted(**arguments, resume=half)),
        "failed": [failed.outer_steps, len(failed.rows), failed.status.value],
        "writer": devices.is_writer(),
        "agreed": devices.agreed(7 * process),
    }


def main(what, *more):
    if what == "joined":
        return joined(more[0], int(more[1]))
    jax.config.update("jax_num_cpu_devices", 4)
    if what == "quick":
        runs, kernels = differences([("mala", {"batch_size": 10})], (4,)), {"mala": mfpda.MALA()}
    else:
        runs = differences(CASES, (1, 2, 4))
        kernels = {"ula, fixed": mfpda.ULA(step_size=0.01)} | {name: KERNELS.resolve(name) for name in KERNELS}
    programs = {name: compiled(kernel) for name, kernel in kernels.items()}
    alone = numbers(fitted("mala", batch_size=10))
    return {"runs": runs, "programs": programs, "pooled": pooled(), "alone": alone}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
