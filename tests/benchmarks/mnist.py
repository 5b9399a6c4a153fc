"""The certified optimum on MNIST as in the paper: what run and certificate cost, and what the fit predicts.

    python -m tests.benchmarks.mnist --temperature 1e-3 --out mnist.json

Odd against even digits, n = 2500, 785 parameters, M = 2500, and the prior of lambda1 = 1e-2 and lambda2 = 1e-4. The
fit is that of ``certified`` in models/paper/mnist.py.
"""

from pathlib import Path

from mfpda.cli import STUDY, _module
from tests.benchmarks.problems import arguments, keep


def main():
    parser = arguments(__doc__)
    parser.add_argument("--temperature", type=float, default=1e-3)
    parser.add_argument("--examples", type=int, default=2500)
    parser.add_argument("--particles", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    study = _module(str(Path(__file__).parents[2] / "models" / "paper" / "mnist.py"), *STUDY)
    found = study.certified(given.temperature, given.examples, given.particles, given.seed, progress=True)
    keep({"temperature": given.temperature, "seed": given.seed} | found, given.out)


if __name__ == "__main__":
    main()
