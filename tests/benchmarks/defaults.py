"""What ``mfpda.fit(key, model, data)`` does with defaults only: 13 problems, 5 seeds each.

    python -m tests.benchmarks.defaults --seeds 5 --problems circles wine --out defaults.json
    python -m tests.benchmarks.defaults --join defaults.json more.json

Gradients are evaluations of grad V divided by the number of particles of the run. Those of the certificate are of the
one that the fit holds. On the reference problems the gap is also computed by quadrature, and the predictions
are compared with those of the optimum.
"""

import collections
import json
import time

import jax
import numpy as np

import mfpda
from tests.benchmarks.problems import PROBLEMS, arguments, column, grouped, joined, keep, print_head, print_row, span

COLUMNS = (
    "problem", "p", "certified", "others", "outer steps (median, max)", "gradients, run (median)",
    "gradients, certificate (median)", "seconds (median)", "share (median, max)", "exact gap / to win (median, max)",
    "above the bound", "prediction error (median, max)",
)  # fmt: skip


def measured(name, case, seed, settings):
    """Fit once, and return the record of the run."""
    began = time.perf_counter()
    key = jax.random.key(seed)
    fit = mfpda.fit(key, case.model, case.data, progress=False, throw=False, **settings)
    seconds, certificate = time.perf_counter() - began, fit.certificate
    if certificate is None and fit.outer_steps:
        certificate = fit.certify(jax.random.fold_in(key, 1))
    record = {
        "problem": name, "seed": seed, "p": fit.thetas.shape[1], "particles": len(fit.thetas),
        "status": fit.status.value, "outer_steps": fit.outer_steps, "seconds": seconds,
        "gradients": sum(row.stats["gradients"] for row in fit.rows),
    }  # fmt: skip
    if certificate is not None:
        record |= {
            "certificate": certificate.status.value, "upper": certificate.upper, "gap": certificate.gap,
            "stderr": certificate.stderr, "share": certificate.share,
            "certificate_gradients": certificate.gradients / len(fit.thetas),
        }  # fmt: skip
    if case.exact is not None and fit.outer_steps:
        gap = case.exact.gap(fit.dual)
        record |= {"exact_gap": gap, "exact_share": gap / case.exact.winnable}
        record["prediction_error"] = case.exact.error(fit.predict(case.data[0]))
    return record


def others(records):
    """Count the statuses other than certified. Name the certificate's if it was refused."""
    words = collections.Counter()
    for record in records:
        refusal = record.get("certificate", "certified")
        if record["status"] != "certified":
            words[record["status"] + ("" if refusal == "certified" else f" ({refusal})")] += 1
    return ", ".join(f"{count} {word}" for word, count in words.items())


def spread(records, name, digits=2):
    """The median and the largest, empty if no record has the number."""
    values = column(records, name)
    if np.isnan(values).all():
        return ""
    largest = np.nanmax(values)
    return f"{np.nanmedian(values):.{digits}g}, {largest:.{digits}g}"


def print_summary(records):
    middle = {each: np.median(column(records, each)) for each in ("gradients", "certificate_gradients", "seconds")}
    exceeded = np.sum(column(records, "exact_gap") > column(records, "upper"))
    print_row(
        records[0]["problem"],
        records[0]["p"],
        f"{sum(record['status'] == 'certified' for record in records)}/{len(records)}",
        others(records),
        spread(records, "outer_steps", 4),
        f"{middle['gradients']:.0f}",
        f"{middle['certificate_gradients']:.0f}",
        f"{middle['seconds']:.1f}",
        spread(records, "share"),
        spread(records, "exact_share"),
        f"{exceeded}/{len(records)}" if "exact_gap" in records[0] else "",
        spread(records, "prediction_error"),
    )


def main():
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=span, default=range(5), help="5 for seeds 0 to 4, or 5:10")
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--fit", type=json.loads, default={}, metavar="JSON", help="other arguments of fit, for a test")
    given = parser.parse_args()
    print_head(*COLUMNS)
    if given.join:
        for records in grouped(joined(given.join), "problem").values():
            print_summary(records)
        return
    for name in given.problems:
        case = PROBLEMS[name]()
        print_summary([keep(measured(name, case, seed, given.fit), given.out) for seed in given.seeds])


if __name__ == "__main__":
    main()
