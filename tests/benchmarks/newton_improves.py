"""Whether Newton's method on the dual still improves after 10 outer steps, and what it reaches on diabetes.

    python -m tests.benchmarks.newton_improves --seeds 12 --problems tanh_squared diabetes --out newton.json
    python -m tests.benchmarks.newton_improves --join newton.json more.json

Reference problems in 2, 10 and 50 dimensions: the exact gap of the dual, and the root mean square distance of the
particles' predictions from those of the optimum, after 10 outer steps and after 40 of the same run. Diabetes at
T = 0.001: R2 on 111 test rows, over seeds.

After 10 steps some runs have a gap far below the median, by chance: the gap is a sum of few squares of noise, and the
later value regresses to its mean. So runs are counted whose late value is at most 1.5 times their own early one, and
at most 1.5 times the median early one of their problem.
"""

import time

import jax
import numpy as np
from sklearn.metrics import r2_score

import mfpda
from tests.benchmarks.problems import (
    REFERENCES,
    arguments,
    column,
    diabetes,
    grouped,
    joined,
    keep,
    of_reference,
    print_head,
    print_row,
    span,
)

STEPS = (10, 40)
SLACK = 1.5  # a later value may be larger than an earlier one by this factor
DIMENSIONS = (2, 10, 50)
DIABETES_SEEDS = 20


def measured(name, case, seed, particles):
    """Run to 10 outer steps, then resume to 40. Return the record of both."""
    record, fit, began = {"problem": name, "seed": seed}, None, time.perf_counter()
    for steps in STEPS:
        fit = mfpda.fit(
            jax.random.key(seed), case.model, case.data, rule="dual_newton", particles=particles, outer_steps=steps,
            progress=False, resume=fit,
        )  # fmt: skip
        if case.exact is not None:
            record[f"gap{steps}"] = case.exact.gap(fit.dual) / case.exact.winnable
            record[f"error{steps}"] = case.exact.error(fit.predict(case.data[0]))
        if case.test is not None:
            x, y = case.test
            record[f"r2_{steps}"] = r2_score(y, fit.predict(x))
    gradients = sum(row.stats["gradients"] for row in fit.rows)
    return record | {"p": fit.thetas.shape[1], "seconds": time.perf_counter() - began, "gradients": gradients}


def spread(values):
    return f"{np.median(values):.2g}, {values.max():.2g}"


def print_summary(records):
    numbers = [column(records, f"{what}{steps}") for what in ("gap", "error") for steps in STEPS]
    gap_early, gap_late, error_early, error_late = numbers
    pairs = (gap_early, gap_late), (error_early, error_late)
    kept = [np.sum(late <= SLACK * early) for early, late in pairs]
    steady = [np.sum(late <= SLACK * np.median(early)) for early, late in pairs]
    print_row(
        records[0]["problem"],
        records[0]["p"],
        *map(spread, numbers),
        *(f"{count}/{len(records)}" for count in kept),
        f"{np.median(column(records, 'seconds')):.1f}",
        f"{np.median(column(records, 'gradients')):.0f}",
    )
    return len(records), *kept, *steady


def print_total(counts):
    runs, gaps, errors, steady_gaps, steady_errors = map(sum, zip(*counts, strict=True))
    text = f"{gaps} have gap(40) <= {SLACK} gap(10) and {errors} have error(40) <= {SLACK} error(10)"
    against = f"against the median early value of their problem {steady_gaps} and {steady_errors}"
    print(f"\nOf {runs} runs, {text}; {against}.\n", flush=True)


def print_diabetes(records):
    print_head("diabetes, test R2", "seeds", "smallest", "median", "largest", "standard deviation")
    for steps in STEPS:
        found = column(records, f"r2_{steps}")
        ends = (found.min(), np.median(found), found.max(), found.std())
        print_row(f"after {steps} steps", len(found), *(f"{each:.4f}" for each in ends))


def main():
    parser = arguments(__doc__)
    names = [*REFERENCES, "diabetes"]
    parser.add_argument("--seeds", type=span, help="12 for seeds 0 to 11, or 12:24. Default 12, for diabetes 20")
    parser.add_argument("--problems", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--dimensions", nargs="+", type=int, default=DIMENSIONS, metavar="P")
    parser.add_argument("--particles", type=int, default=1000)
    given = parser.parse_args()

    def run(name, case, seeds):
        return [keep(measured(name, case, seed, given.particles), given.out) for seed in given.seeds or range(seeds)]

    values = [f"{what}, {steps} steps (median, max)" for what in ("gap / to win", "error") for steps in STEPS]
    print_head("problem", "p", *values, "gap kept", "error kept", "seconds", "gradients")
    if given.join:
        records = joined(given.join)
        real = [record for record in records if record["problem"] == "diabetes"]
        found = [record for record in records if record["problem"] != "diabetes"]
        counts = [print_summary(group) for group in grouped(found, "problem", "p").values()]
    else:
        cases = [(name, p) for name in given.problems if name in REFERENCES for p in given.dimensions]
        counts = [print_summary(run(name, of_reference(name, p), 12)) for name, p in cases]
    if counts:
        print_total(counts)
    if not given.join:
        real = run("diabetes", diabetes(0.001), DIABETES_SEEDS) if "diabetes" in given.problems else []
    if real:
        print_diabetes(real)


if __name__ == "__main__":
    main()
