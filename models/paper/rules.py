"""Outer rules compared: what a certified gap costs under each (the paper has dual averaging alone).

Counted are evaluations of grad V per particle, and seconds without compilation, until the certified gap of q_g (its
upper bound at level 0.99, 8 replicates) is below a share of L(prior) - L*: the first of two certificates in a row that
are. Certificates are asked for at outer steps that grow by a factor of 1.4. Between the last one above the target and
the first below, the step at which it was reached is a straight line in logarithms, rounded up to a whole outer step.
A run that has spent its budget without that has not reached the target. For L* stands the dual value of the certificate
itself: it is at most L*, and at the target as near to it as the share.

Problems, each with its share and its budget of gradients: three of two parameters (models/paper/references, whose exact
gap is recorded too; M = 8000, and 32000 for tanh_logistic; 5 % for sine_squared and tanh_logistic, 0.1 % for
tanh_squared; 600), the sign of a single index of models/paper/samplers.py (51 parameters, n = 1000, M = 4000, 0.1 %,
200), and odd against even of scikit-learn's digits (65 parameters, n = 500, logistic loss, h = 5 tanh, prior
N(0, 0.3^2), T = 0.01, M = 4000, 1 %, 150). Replicates have 500 to 24000 particles, so many that their error is below a
fifth of the target where it is reached (but for one run of fictitious play, 0.205 of it).

Each rule has, on each problem, the start, the kernel and the inner steps (and the rate of fictitious play) out of
CANDIDATES that reached the target on three seeds of their own, 1000 to 1002, with the fewest gradients; where none did,
those that reached it on most of them before they missed, or whose bound came nearest to it. Step sizes choose
themselves; the share of a sample that Newton and coordinate ascent leave is 0.5. Tempered starts, which cost about 100
gradients an outer step with 51 parameters, are offered on the problems of two parameters only. The sixth entry, on the
single index alone, is dual averaging with warm starts and the overdamped kernels: ULA with the 5 inner steps of
models/paper/samplers.py, or MALA: it shows what the kernel does. With MALA alone Newton needs 42 to 45 gradients there
on the tuning seeds, more than dual averaging, which needs 32.

Settings were chosen after a look at results of seeds 0 to 4; those of the study are 5 to 9. M on the problems of two
parameters was 2000 at first, then 8000; Newton needed 426, 84, 78, 162 and 102 gradients on tanh_logistic, then 9, 12,
127, 12 and 12, against means of 453 and 176 of coordinate ascent, and 177 of dual averaging. As shares of modes have
the error of M particles, M is 32000 there, where seeds 0 to 4 needed 8, 6, 6, 8 and 8; but seeds 5 to 9 needed 67, 8,
8, 8 and 65, as few draws of the prior lead to some of the modes. So the first reweighted particles are now chosen out
of 16 M draws (tried on seeds 2000 to 2015, by exact gaps: a tenth of what they were with M = 8000, a quarter with
32000), and the two rules that start with weights, Newton and coordinate ascent, were tuned and run again. On digits and
on the single index M was 1000 at first; Newton missed the target on two seeds of the former. The underdamped kernel was
offered to no rule at first, and a single step of MALA only to noisy GD; fictitious play still has no single step of
MALA. With a share of 0.05 coordinate ascent needs 1 or 2 gradients on sine_squared (exact gaps, tuning seeds, before
the 16 M draws), as few as Newton does with any.

Seconds are those of one gradient, the shorter of two measurements at the end of each run, times the gradients. They are
rough: two processes shared the work, beside other work on the same cores, most of it while Newton and coordinate ascent
were run again.
"""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import xarray as xr
from digits import split
from matplotlib.ticker import LogLocator, NullFormatter
from teachers import examples, single_index, student

import mfpda
from mfpda.exact import Quadrature
from mfpda.rules import FictitiousPlay
from mfpda.studies import Claim, lower

NEWTON, AVERAGING, LATEST, OVERDAMPED = "dual_newton", "dual_averaging", "latest", "dual_averaging_overdamped"
TITLES = {
    NEWTON: "Newton on the dual",
    AVERAGING: "dual averaging",
    "dual_coordinate_ascent": "dual coordinate ascent",
    "fictitious_play": "fictitious play",
    LATEST: "latest (noisy GD)",
    OVERDAMPED: "dual averaging, overdamped",
}
NEURONS = {
    "sine_squared": lambda theta, x: 2 * jnp.sin(theta["w"] * x[0]) * jnp.tanh(theta["b"]),
    "tanh_logistic": lambda theta, x: 5 * jnp.tanh(theta["w"] * x[0] + theta["b"]),
    "tanh_squared": lambda theta, x: jnp.tanh(theta["w"] * x[0] + theta["b"]),
}
BOUNDS = {"sine_squared": (-18, 18), "tanh_logistic": (-14, 14), "tanh_squared": (-4, 4)}
LOSSES = {"squared": mfpda.losses.Squared(), "logistic": mfpda.losses.Logistic()}
GROWTH = 1.4  # of the outer steps from certificate to certificate
TUNING_SEEDS = (1000, 1001, 1002)
SEEDS = range(5, 10)
SCREENED_WITH = 1000  # particles of a certificate that can only say no
BY_LOOK = ("outer_step", "gradients", "gap", "stderr", "upper", "target", "exact")  # what every certificate gives
BY_RUN = ("to_target", "spent", "seconds_a_gradient")


class Candidate(NamedTuple):
    """How a rule is run."""

    start: str
    kernel: str
    inner_steps: int
    rate: float | None = None

    def __str__(self):
        named = f"{self.start} {self.kernel} {self.inner_steps}"
        return named if self.rate is None else f"{named} rate {self.rate:g}"


TEMPERED = Candidate("temper", "mala", 5)
REWEIGHTED = [
    *(Candidate("reweight", "mala", steps) for steps in (2, 1, 5, 10)),
    *(Candidate("reweight", "underdamped", steps) for steps in (1, 2)),
]
CANDIDATES = {
    NEWTON: [*REWEIGHTED, TEMPERED],
    AVERAGING: [
        *(Candidate("warm", "mala", steps) for steps in (2, 1, 5, 10, 20)),
        *(Candidate("warm", "underdamped", steps) for steps in (1, 2)),
        TEMPERED,
    ],
    "dual_coordinate_ascent": [*REWEIGHTED, TEMPERED],
    "fictitious_play": [
        *(Candidate("warm", "mala", 5, rate) for rate in (0.1, 0.02, 0.5)),
        *(Candidate("warm", "underdamped", 1, rate) for rate in (0.1, 0.3)),
        Candidate("reweight", "mala", 5, 0.02),
        TEMPERED._replace(rate=0.1),
    ],
    LATEST: [Candidate("warm", kernel, 1) for kernel in ("mala", "ula", "underdamped")],
    OVERDAMPED: [Candidate("warm", "ula", 5), *(Candidate("warm", "mala", steps) for steps in (2, 1, 5, 10))],
}


class Setting(NamedTuple):
    """A problem, and how it is run and judged."""

    model: mfpda.Model
    data: Any  # data(seed, key) -> (x, y)
    share: float  # of L(prior) - L*
    particles: int
    certified_with: int  # particles of a replicate
    first: int  # gradients before the first certificate, about
    budget: int
    grid: Quadrature | None = None


def reference(name, quick):
    """A problem with two parameters, and its grid."""
    stored = json.loads((Path(__file__).parent / "references" / f"{name}.json").read_text())
    prior = dist.Normal(0, stored["prior_scale"])
    loss, temperature = LOSSES[stored["loss"]], stored["temperature"]
    model = mfpda.Model.from_function(NEURONS[name], {"w": prior, "b": prior}, loss, temperature)
    data = np.asarray(stored["x"]), np.asarray(stored["y"])
    grid = Quadrature.of(model, data, BOUNDS[name], 101 if quick else 201)
    share = 1e-3 if name == "tanh_squared" else 0.05
    certified_with = {"sine_squared": 2000, "tanh_logistic": 24000, "tanh_squared": 1000}[name]
    sizes = (2000, 1000, 1, 300) if quick else (32000 if name == "tanh_logistic" else 8000, certified_with, 1, 600)
    return Setting(model, lambda seed, key: data, share, *sizes, grid)


def index():
    """The sign of a single index, p = 51."""
    model, teacher = student(50, lambda1=1e-2, lambda2=5e-4), single_index(jnp.sign)
    return Setting(model, lambda seed, key: examples(key, teacher, 1000, 50), 1e-3, 4000, 500, 6, 200)


def odd_digits():
    """Odd digits against even ones."""
    prior = dist.Normal(0, 0.3)

    def neuron(x):
        w = numpyro.sample("w", prior.expand([64]).to_event(1))
        b = numpyro.sample("b", prior)
        return 5 * jnp.tanh(x @ w + b)

    def data(seed, key):
        x, y, _, _ = split(seed, 500)
        return x, 2.0 * (y % 2) - 1

    return Setting(mfpda.Model(neuron, mfpda.losses.Logistic(), 0.01), data, 0.01, 4000, 1000, 2, 150)


def problems(quick):
    if quick:
        return {"sine_squared": reference("sine_squared", quick)}
    return {name: reference(name, quick) for name in NEURONS} | {"single_index": index(), "digits": odd_digits()}


def study(quick):
    settings, rules = problems(quick), [NEWTON, AVERAGING] if quick else list(TITLES)

    def tune(problem, rule):
        """Every candidate on the tuning seeds, until it misses on one or would cost more than the best before it.

        Either is recorded as infinite, and the seeds after it as NaN.
        """
        candidates, setting = offered(rule, settings[problem], quick), settings[problem]
        seeds = TUNING_SEEDS if len(candidates) > 1 and is_run(problem, rule) else ()
        tried = np.full((len(candidates), len(TUNING_SEEDS)), np.nan)
        best, order = np.inf, []
        for candidate, row in zip(candidates, tried, strict=True):
            spent, nearest = 0.0, np.inf
            for k, seed in enumerate(seeds):
                numbers, _ = followed(setting, rule, candidate, seed, min(setting.budget, best - spent))
                row[k], ratios = numbers["to_target"], (numbers["upper"] / numbers["target"]).values
                nearest = np.fmin.reduce(ratios, initial=np.inf)
                spent += row[k]
                if spent > best or np.isinf(spent):
                    break
            best = min(best, spent)
            order.append((spent, -np.isfinite(row).sum(), nearest))
        choice = min(range(len(candidates)), key=order.__getitem__)
        axes = {"candidate": range(len(candidates)), "tuning_seed": list(TUNING_SEEDS)}
        return {"tuning": xr.DataArray(tried, axes, dims=list(axes)), "choice": choice}

    tuned = mfpda.studies.sweep(tune, problem=settings, rule=rules)

    def run(problem, rule, seed):
        if not is_run(problem, rule):
            none = xr.DataArray([np.nan], {"look": [0]}, dims="look")
            return dict.fromkeys(BY_LOOK, none) | dict.fromkeys(BY_RUN, np.nan)
        chosen = offered(rule, settings[problem], quick)[int(tuned["choice"].sel(problem=problem, rule=rule))]
        setting = settings[problem]
        numbers, continued = followed(setting, rule, chosen, seed, setting.budget)
        diverged = not np.isfinite(numbers["gradients"][-1])
        return numbers | {"seconds_a_gradient": np.nan if diverged else seconds_a_gradient(continued)}

    runs = mfpda.studies.sweep(run, problem=settings, rule=rules, seed=range(2) if quick else SEEDS)
    names = [
        [str(offered(rule, settings[problem], quick)[int(choice)]) for rule, choice in zip(rules, row, strict=True)]
        for problem, row in zip(settings, tuned["choice"].values, strict=True)
    ]
    return runs.assign(
        tuning=tuned["tuning"],
        chosen=(("problem", "rule"), names),
        share=("problem", [setting.share for setting in settings.values()]),
        budget=("problem", [setting.budget for setting in settings.values()]),
    )


def is_run(problem, rule):
    """Whether there is this entry: overdamped dual averaging is one on the single index alone."""
    return rule != OVERDAMPED or problem == "single_index"


def offered(rule, setting, quick):
    """The candidates of a rule on a problem; one of each, when quick."""
    found = [each for each in CANDIDATES[rule] if each.start != "temper" or setting.grid is not None]
    return found[:1] if quick else found


def followed(setting, rule, candidate, seed, limit):
    """A run until its target is reached or more than ``limit`` gradients are spent: numbers by certificate.

    Also a function that goes on with it for so many outer steps.
    """
    data_key, fit_key, certify_key = jax.random.split(jax.random.key(seed), 3)
    data, loss = setting.data(seed, data_key), setting.model.loss
    plugs: dict[str, Any] = {"start": candidate.start, "kernel": candidate.kernel}
    plugs["rule"] = AVERAGING if rule == OVERDAMPED else rule
    if candidate.rate is not None:
        plugs["rule"] = FictitiousPlay(rate=candidate.rate)
    plugs |= {"inner_steps": candidate.inner_steps, "particles": setting.particles, "progress": False}

    def gone_on(fit, outer_steps, every):
        record = mfpda.Record(every=every, sites=(), particles=1)
        arguments = {"outer_steps": outer_steps, "resume": fit, "record": record, "throw": False} | plugs
        return mfpda.fit(fit_key, setting.model, data, **arguments)

    nothing = jnp.zeros(len(data[0]))  # what the prior predicts: every h here is odd in theta, or in w
    of_prior = float(jnp.mean(loss.over_rows(loss.value, nothing, jnp.asarray(data[1], float))))
    t, fit, looks = max(1, round(setting.first / (candidate.inner_steps + 1))), None, []
    spent = np.zeros(1)
    while True:
        fit = gone_on(fit, t, every=1)
        if fit.status is not mfpda.Status.FINISHED:
            looks.append((t, np.nan, np.nan, np.nan, np.inf, 1.0, np.nan))
            break
        spent = np.cumsum([row.stats["gradients"] for row in fit.rows])
        for particles in sorted({min(SCREENED_WITH, setting.certified_with), setting.certified_with}):
            certificate = fit.certify(jax.random.fold_in(certify_key, t), particles=particles, replicates=8, level=0.99)
            target = setting.share * (of_prior - certificate.dual_value)
            if certificate.gap - 3 * certificate.stderr > target:
                break  # more particles would say the same
        exact = np.nan if setting.grid is None else exact_gap(setting.grid, np.asarray(fit.dual, float))
        looks.append((t, spent[-1], certificate.gap, certificate.stderr, certificate.upper, target, exact))
        below = [look[4] < look[5] for look in looks]
        if (all(below[-2:]) and len(below) > 1) or (spent[-1] > limit and not below[-1]):
            break
        t = max(t + 1, round(GROWTH * t))
    columns = {name: np.asarray(column, float) for name, column in zip(BY_LOOK, zip(*looks, strict=True), strict=True)}
    step = reached_at(columns)
    gradients = spent[int(step) - 1] if np.isfinite(step) and spent[int(step) - 1] <= limit else np.inf
    by_look = {name: xr.DataArray(values, {"look": range(len(looks))}, dims="look") for name, values in columns.items()}
    numbers = by_look | {"to_target": gradients, "spent": spent[-1]}
    return numbers, lambda more, every: gone_on(fit, fit.outer_steps + more, every)


def exact_gap(grid, dual):
    """(FY) of q_g by quadrature; NaN where the grid cuts its density off."""
    try:
        law, _ = grid.gibbs(dual / len(dual))
    except mfpda.InputError:
        return np.nan
    return grid.fenchel_young(dual, grid.predictions(law))


def reached_at(looks):
    """The outer step at which the target was reached, infinite where it was not."""
    t, ratio = looks["outer_step"], looks["upper"] / looks["target"]
    below = ratio < 1
    if len(below) < 2 or not below[-2:].all():
        return np.inf
    if len(below) == 2 or not np.isfinite(ratio[-3]):
        return t[-2]
    (before, after), (above, under) = t[-3:-1], np.log(ratio[-3:-1])
    return np.ceil(np.exp(np.log(before) + above / (above - under) * np.log(after / before)) - 1e-9)


def seconds_a_gradient(continued, steps=4):
    """Of outer steps that are not recorded: the difference of a longer and a shorter run, the shorter of two."""

    def seconds(more):
        began = time.perf_counter()
        continued(more, 10**6)
        return time.perf_counter() - began

    longer = continued(3 * steps, 1)  # also so that nothing is left to compile
    gradients = sum(row.stats["gradients"] for row in longer.rows[-2 * steps :])
    seconds(steps)
    return max(min(seconds(3 * steps) - seconds(steps) for _ in range(2)), 0.0) / gradients


def compared(dataset, problem):
    """The rules that were run on a problem."""
    return [
        rule for rule in dataset["rule"].values if np.isfinite(dataset["spent"].sel(problem=problem, rule=rule)).all()
    ]


def costs(dataset, problem, rule):
    """Gradients to the target by seed. Where it was not reached, all that was spent: the cost is more than that."""
    each = dataset.sel(problem=problem, rule=rule)
    return np.where(np.isfinite(each["to_target"]), each["to_target"], each["spent"])


def seconds(dataset, problem, rule):
    """Seconds to the target by seed; where it was not reached, until the run was given up."""
    return costs(dataset, problem, rule) * dataset["seconds_a_gradient"].sel(problem=problem, rule=rule).values


def numbers(dataset, problem, rule):
    """Gradients to the target, seed by seed, in words."""
    reached = np.isfinite(dataset["to_target"].sel(problem=problem, rule=rule).values)
    found = zip(costs(dataset, problem, rule), reached, strict=True)
    return " ".join(f"{cost:.0f}" if ok else f">{cost:.0f}" for cost, ok in found)


def table(dataset):
    """All that was measured, as text: gradients by seed, their mean, seconds over dual averaging's, and the choice."""
    lines = [
        f"{'problem':14} {'rule':24} {'gradients of each seed':34} {'mean':>7} {'seconds':>8} {'of DA':>7}  settings"
    ]
    for problem in dataset["problem"].values:
        base = np.median(seconds(dataset, problem, AVERAGING))
        for rule in compared(dataset, problem):
            found, taken = costs(dataset, problem, rule), np.median(seconds(dataset, problem, rule))
            missed = not np.isfinite(dataset["to_target"].sel(problem=problem, rule=rule)).all()
            mean = f"{'>' * missed}{found.mean():.0f}"
            chosen = str(dataset["chosen"].sel(problem=problem, rule=rule).item())
            lines.append(
                f"{problem:14} {TITLES[rule]:24} {numbers(dataset, problem, rule):34} {mean:>7} {taken:8.3f} "
                f"{taken / base:7.2f}  {chosen}"
            )
    return "\n".join(lines)


def claims(dataset):
    """Ratios of gradients, judged seed by seed. A rule that did not reach counts with what it spent: at least that."""
    found, present = [], set(dataset["problem"].values)
    for problem in ("sine_squared", "tanh_logistic"):
        if problem in present:
            others = [rule for rule in compared(dataset, problem) if rule != NEWTON]
            best = min(others, key=lambda rule: costs(dataset, problem, rule).mean())
            text = f"{problem}: Newton needs at most a third of the gradients of the best other rule"
            found.append(at_most(text, dataset, problem, 1 / 3, best))
            text = f"{problem}: Newton needs at most a tenth of the gradients of dual averaging"
            found.append(at_most(text, dataset, problem, 1 / 10, AVERAGING))
    if "single_index" in present:
        text = "p = 51: Newton needs at most half of the gradients of dual averaging"
        found.append(at_most(text, dataset, "single_index", 1 / 2, AVERAGING))
        text = "p = 51: Newton needs at most 2.5 times the gradients of noisy GD"
        found.append(at_most(text, dataset, "single_index", 2.5, LATEST))
    return found


def at_most(text, dataset, problem, factor, other):
    """The claim that Newton costs at most ``factor`` times another rule, with the numbers of every rule.

    It does not hold where the means say so, and holds only where the difference is beyond chance.
    """
    newton, theirs = costs(dataset, problem, NEWTON), costs(dataset, problem, other)
    missed = not np.isfinite(dataset["to_target"].sel(problem=problem, rule=NEWTON)).all()
    claim, slower = lower(text, newton, factor * theirs), np.median(seconds(dataset, problem, NEWTON))
    slower /= np.median(seconds(dataset, problem, other))
    every = "; ".join(f"{TITLES[rule]} {numbers(dataset, problem, rule)}" for rule in compared(dataset, problem))
    measured = f"{newton.mean() / theirs.mean():.2g} of {TITLES[other]}, in seconds {slower:.2g} of it; "
    measured += f"{factor:.2g} times its cost: {claim.measured}"
    exceeded = missed or newton.mean() > factor * theirs.mean() * (1 + 1e-9)  # but for rounding
    return Claim(text, False if exceeded else claim.holds, f"{measured}; gradients by seed: {every}")


def figure(dataset):
    """Dots of all seeds, bars at their medians: gradients above, seconds relative to dual averaging's below."""
    names, rules = dataset["problem"].values, list(dataset["rule"].values)[::-1]
    wide = 2.6 * len(names) + 2.2
    figure, axes = plt.subplots(2, len(names), figsize=(wide, 6), sharey=True, squeeze=False, layout="constrained")
    words = {"single_index": "single index, p = 51", "digits": "digits, odd or even"}
    for column, problem in zip(axes.T, names, strict=True):
        base = np.median(seconds(dataset, problem, AVERAGING))
        share, budget = (float(dataset[name].sel(problem=problem)) for name in ("share", "budget"))
        for height, rule in enumerate(rules):
            if rule not in compared(dataset, problem):
                continue
            reached = np.isfinite(dataset["to_target"].sel(problem=problem, rule=rule).values)
            measured = (costs(dataset, problem, rule), seconds(dataset, problem, rule) / base)
            for ax, values in zip(column, measured, strict=True):
                offset = height + np.linspace(-0.2, 0.2, len(values))
                colour = f"C{list(TITLES).index(rule)}"
                ax.plot(values[reached], offset[reached], "o", color=colour, alpha=0.8, ms=5)
                ax.plot(values[~reached], offset[~reached], ">", color=colour, mfc="white", ms=6)
                ax.plot([np.median(values)] * 2, [height - 0.32, height + 0.32], color="0.2", linewidth=1.2, zorder=0)
        top, bottom = column
        top.axvline(budget, color="0.6", linestyle=":")
        top.set(xscale="log", xlabel="evaluations of $\\nabla V$ per particle")
        top.set_title(f"{words.get(problem, problem.replace('_', ', '))}\nto {100 * share:g} % of what can be won")
        bottom.axvline(1, color="0.6", linestyle="--")
        bottom.set(xscale="log", xlabel="seconds / dual averaging's")
    for ax in axes.flat:
        ax.grid(axis="x", alpha=0.3)
        low, high = np.log10(ax.get_xlim())
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high - low > 1.3 else (1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter("{x:g}")  # 20, not 2 x 10^1
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_ylim(-0.6, len(rules) - 0.4)
    for ax in axes[:, 0]:
        ax.set_yticks(range(len(rules)), [TITLES[rule] for rule in rules])
        ax.set_ylabel("outer rule")
    handles = [
        plt.Line2D([], [], marker="o", linestyle="", color="0.4", label="a seed"),
        plt.Line2D([], [], marker=">", linestyle="", color="0.4", mfc="white", label="not reached: more than this"),
        plt.Line2D([], [], color="0.2", label="median"),
        plt.Line2D([], [], color="0.6", linestyle=":", label="budget"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(2 * len(names), len(handles)))
    return figure
