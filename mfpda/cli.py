"""The command line, thin over the library: ``mfpda run FILE``, ``mfpda resume FOLDER``, ``mfpda certify RUN.nc``,
``mfpda summary RUN.nc``, ``mfpda study FILE`` and ``mfpda kernels``."""

import argparse
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from mfpda import studies
from mfpda.core import schedules
from mfpda.distributed import processes
from mfpda.distributed.mesh import is_writer
from mfpda.engine.fit import fit, suited
from mfpda.errors import InputError, RunError, Status, Terminated
from mfpda.kernels import KERNELS
from mfpda.kernels.base import is_adjusted
from mfpda.persistence import files as storage
from mfpda.persistence.checkpoint import Checkpoint
from mfpda.progress.history import Record
from mfpda.registry import settings_of
from mfpda.results import plots
from mfpda.results.diagnostics import summary, verdict
from mfpda.results.loading import Kept, load
from mfpda.rules import RULES
from mfpda.starts import STARTS

MODEL_FILE = "model_file"  # the attribute of a saved run that says where its model is declared
MODEL = "model", "data"  # what a file of a model defines
STUDY = "study", "claims", "figure"
PYTHON_NAMES = ("mfpda.MALA(step_size=0.01)", "mfpda.FromBlackJAX(blackjax.hmc, num_integration_steps=5)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it did its work, 1 when a run failed, 2 when the input was refused."""
    options = _parser().parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return options.command(options)
    except InputError as error:
        print(f"mfpda: {error}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    """Fit the model of a file, print its summary, and write what was asked for, also of a run that failed."""
    return _in_processes(options, _run)


def _in_processes(options: argparse.Namespace, command: Callable[[argparse.Namespace], int]) -> int:
    """A command in this process alone, in several that are started here, or as one of those."""
    processes.check(options.coordinator, options.processes, options.process)
    if options.coordinator is not None:
        if options.launched:
            processes.end_with_parent()
        with processes.joined(options.coordinator, options.processes, options.process):
            return command(options)
    if (options.processes or 1) > 1:
        code = processes.launch(options.arguments, options.processes)
        folder = getattr(options, "folder", None) or getattr(options, "checkpoint", None)
        if code == 1 and folder and Path(folder).is_dir():
            print(f"mfpda: `mfpda resume {folder}` goes on from its last checkpoint", file=sys.stderr)
        return code
    return command(options)


def _run(options: argparse.Namespace) -> int:
    for path in filter(None, (options.out, options.figure)):
        storage.check_writable(path)
    module = _module(options.file, *MODEL)
    settings = dict(getattr(module, "settings", {}))
    arguments = settings | _overrides(options, settings)
    if not options.checkpoint and (options.checkpoint_every or options.checkpoint_seconds):
        raise InputError(
            "--checkpoint FOLDER with --checkpoint-every and --checkpoint-seconds", "none", "Name a folder."
        )
    if options.checkpoint:
        every, seconds = options.checkpoint_every or 1, options.checkpoint_seconds
        arguments["checkpoint"] = Checkpoint(options.checkpoint, every, seconds, origin=_origin(options))
    return _fitted(options, module, arguments)


def resume(options: argparse.Namespace) -> int:
    """Go on with a run from the folder of its checkpoint: it ends with the same bits as if it had never stopped."""
    begun = Kept.read(options.folder).beginning.facts["origin"].get("options", {})
    if begun.get("launched") and options.processes is None:  # in as many processes as it was started in
        options.processes = begun["processes"]
        options.arguments = [*options.arguments, "--processes", str(begun["processes"])]
    return _in_processes(options, _resume)


def _resume(options: argparse.Namespace) -> int:
    for path in filter(None, (options.out, options.figure)):
        storage.check_writable(path)
    kept = Kept.read(options.folder)
    origin = kept.beginning.facts["origin"]
    if "file" not in origin:
        advice = "Go on with it in Python: mfpda.fit(..., resume=folder)."
        raise InputError("a checkpoint of `mfpda run`", "one that was made in Python", advice)
    file = options.model or origin["file"]
    if not Path(file).is_file():
        advice = "If it has moved, say where: mfpda resume FOLDER --model FILE.py."
        raise InputError("the model file of the run", f"no file at {file!r}", advice)
    if _digest(file) != origin["digest"]:
        advice = "Give the file as it was: mfpda resume FOLDER --model FILE.py."
        raise InputError(
            "the model file of the run", f"that {file!r} has been changed since (its digest differs)", advice
        )
    module = _module(file, *MODEL)
    begun = argparse.Namespace(**origin["options"])
    settings = dict(getattr(module, "settings", {}))
    arguments = settings | _overrides(begun, settings)
    arguments["outer_steps"] = options.outer_steps or kept.ends[-1]
    every, seconds = begun.checkpoint_every or 1, begun.checkpoint_seconds
    arguments |= {"resume": options.folder, "checkpoint": Checkpoint(options.folder, every, seconds)}
    options.file, options.key = file, begun.key
    return _fitted(options, module, arguments)


def _fitted(options: argparse.Namespace, module: ModuleType, arguments: dict[str, Any]) -> int:
    """Fit, print the summary, write what was asked for."""
    arguments = {"progress": True} | arguments | {"throw": True}
    if options.quiet:
        arguments["progress"] = False
    data_key, fit_key = jax.random.split(jax.random.key(options.key))
    code = 0
    try:
        result = fit(fit_key, module.model, module.data(data_key), **arguments)
    except RunError as error:
        result, code = error.fit, 1
        reason = f": {error.__cause__}" if error.__cause__ else ""
        print(f"mfpda: the run {result.status.value} after outer step {result.outer_steps}{reason}", file=sys.stderr)
    except Terminated as error:
        result, code = error.fit, int(str(error.code))
    if result.status is Status.INTERRUPTED:
        code = code or 130  # 128 + SIGINT, as shells know it
    if not is_writer():
        return code
    if result.folder and result.status not in (Status.FINISHED, Status.CERTIFIED):
        print(f"mfpda: `mfpda resume {result.folder}` goes on after outer step {result.outer_steps}", file=sys.stderr)
    if options.out:
        named = result.attributes | {MODEL_FILE: str(Path(options.file).resolve())}
        dataclasses.replace(result, attributes=named).save(options.out)
    print(summary(result.idata), end="\n\n")
    if options.out:
        print(f"saved {options.out}")
    if options.figure and not result.rows:
        print(f"not drawn: {options.figure}, no outer step was finished")
    elif options.figure:
        _drawn(
            lambda: module.figure(result) if hasattr(module, "figure") else plots.stat(result.idata).figure,
            options.figure,
        )
        print(f"drawn {options.figure}")
    return code


def _origin(options: argparse.Namespace) -> dict[str, Any]:
    """What ``resume`` needs to make the same call again: the model's file, its digest, and what was asked for."""
    asked = {name: value for name, value in vars(options).items() if name not in ("command", "arguments")}
    return {"file": str(Path(options.file).resolve()), "digest": _digest(options.file), "options": asked}


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def summarise(options: argparse.Namespace) -> int:
    print(summary(storage.read(options.file)))
    return 0


def certify(options: argparse.Namespace) -> int:
    """Ask a saved run how far it is from the global optimum, and for a verdict in words."""
    path = options.model or storage.read(options.file).attrs.get(MODEL_FILE)
    if path is None:
        advice = f"The model is code and is not in the file: mfpda certify {options.file} --model FILE.py."
        raise InputError("the Python file of the model", "none named in the run", advice)
    found = verdict(jax.random.key(options.key), load(options.file, _module(path, *MODEL).model))
    print(found.certificate, found, sep="\n\n")
    return 0


def study(options: argparse.Namespace) -> int:
    """Make the runs behind a figure: the data set, the figure, and whether what was claimed holds."""
    module, folder = _module(options.file, *STUDY), Path(options.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("a folder to write to", f"{options.out!r}: {error.strerror}", "Give another --out.") from None
    path = folder / f"{Path(options.file).stem}{'_quick' if options.quick else ''}.nc"
    storage.check_writable(path)
    if options.redraw:
        dataset = storage.read_dataset(path)
    else:
        try:
            dataset = studies.run(module, options.quick, folder)
        except KeyboardInterrupt:
            print("mfpda: stopped. The same command goes on from the runs that were finished.", file=sys.stderr)
            return 1
        storage.write_dataset(dataset, path)
        print(f"saved {path} after {dataset.attrs['seconds']:.0f} s")
    claims = module.claims(dataset)
    if not all(isinstance(claim, studies.Claim) for claim in claims):
        advice = f"Return a list of mfpda.studies.Claim, then mfpda study {options.file} --redraw."
        raise InputError("claims(dataset) that returns claims", type(claims).__name__, advice)
    seeds = f"{dataset.sizes['seed']} seeds" if "seed" in dataset.sizes else "no dimension seed"
    head = f"{path.stem}: {seeds}, +- one standard error"
    head += ". A quick version, to see that it works: its verdicts are not the study's." if options.quick else ""
    verdict = "\n".join([head, *map(str, claims)])
    path.with_suffix(".txt").write_text(verdict + "\n")
    print(f"\n{verdict}\n")
    _drawn(lambda: module.figure(dataset), path.with_suffix(".png"))
    print(f"drawn {path.with_suffix('.png')}")
    return 0


def list_kernels(options: argparse.Namespace) -> int:
    """List the kernels by the names that --kernel and fit(kernel=...) take, with their settings."""
    rows = [("name", "law", "settings")]
    for name in KERNELS:
        try:
            kernel = KERNELS.resolve(name)
            settings = ", ".join(f"{setting}={value!r}" for setting, value in settings_of(kernel).items())
            law = f"adjusted, tuned to {kernel.target_acceptance}" if is_adjusted(kernel) else "unadjusted"
            rows.append((name, law, settings))
        except InputError as error:  # a library that is not installed
            rows.append((name, "", str(error)))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, law, settings in rows:
        print(f"{name:<{widths[0]}}  {law:<{widths[1]}}  {settings}")
    print("\nadjusted: keeps exp(-V) invariant whatever its numbers are; step_size='auto' tunes its acceptance.")
    print("Settings are given in Python: " + ", ".join(PYTHON_NAMES) + ".")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mfpda", description="Optimise over probability distributions.")
    parser.add_argument("--version", action="version", version=f"mfpda {importlib.metadata.version('mfpda')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("run", help="fit the model of a file", description=run.__doc__)
    command.set_defaults(command=run)
    command.add_argument("file", help="a Python file with `model`, `data(key)` and `settings`, as in models/")
    _add_results(command)
    command.add_argument("--key", type=int, default=0, help="seed of the random key (default 0)")
    command.add_argument("--checkpoint", metavar="FOLDER", help="a new folder to keep the run in, for mfpda resume")
    command.add_argument(
        "--checkpoint-every", type=int, metavar="K", help="outer steps between checkpoints (default 1)"
    )
    command.add_argument("--checkpoint-seconds", type=float, metavar="S", help="seconds between them, instead")
    settings = command.add_argument_group("arguments of fit (default: the file's settings)")
    settings.add_argument("--rule", metavar="NAME", help=", ".join([*RULES, *RULES.also]))
    settings.add_argument("--kernel", metavar="NAME", help=", ".join(KERNELS))
    settings.add_argument("--step-size", metavar="SCHEDULE", help="auto, 0.01 or inverse_sqrt:0.1")
    settings.add_argument("--start", metavar="NAME", help=", ".join(STARTS))
    settings.add_argument("--particles", type=int, metavar="M")
    settings.add_argument("--outer-steps", type=int, metavar="T")
    settings.add_argument("--inner-steps", metavar="SCHEDULE", help="20 or linear:5")
    settings.add_argument("--batch-size", metavar="B", help="a number, or none for the full batch")
    settings.add_argument("--certify-every", type=int, metavar="K")
    settings.add_argument("--stop-at-gap", type=float, metavar="EPS")
    settings.add_argument(
        "--memory", type=float, metavar="GIB", help="for intermediate results (default: a quarter of what is free)"
    )
    settings.add_argument("--record-every", type=int, metavar="K")
    settings.add_argument("--record-particles", type=int, metavar="M")
    settings.add_argument("--record-sites", metavar="A,B")
    _add_processes(command)

    command = commands.add_parser("resume", help="go on with a run from its checkpoint", description=resume.__doc__)
    command.set_defaults(command=resume)
    command.add_argument("folder", help="the folder of mfpda run --checkpoint")
    _add_results(command)
    command.add_argument("--model", metavar="FILE.py", help="the file of its model, if it has moved since")
    command.add_argument("--outer-steps", type=int, metavar="T", help="outer steps in all, if more than were asked for")
    _add_processes(command)

    command = commands.add_parser(
        "certify", help="bound a saved run's distance to the optimum", description=certify.__doc__
    )
    command.set_defaults(command=certify)
    command.add_argument("file", metavar="RUN.nc")
    command.add_argument("--model", metavar="FILE.py", help="the file of its model (default: the one it was run from)")
    command.add_argument("--key", type=int, default=0, help="seed of the random key (default 0)")

    command = commands.add_parser("summary", help="print a saved run as a table", description=summary.__doc__)
    command.set_defaults(command=summarise)
    command.add_argument("file", metavar="RUN.nc")

    command = commands.add_parser("study", help="make the runs behind a figure", description=study.__doc__)
    command.set_defaults(command=study)
    command.add_argument("file", help="a Python file with study(quick), claims(dataset) and figure(dataset)")
    command.add_argument("--quick", action="store_true", help="a small version, to see that it works")
    command.add_argument("--out", metavar="DIR", default="results", help="for NAME.nc, .png and .txt (default results)")
    command.add_argument("--redraw", action="store_true", help="claims and figure anew, from the NAME.nc there")

    command = commands.add_parser("kernels", help="list the kernels", description=list_kernels.__doc__)
    command.set_defaults(command=list_kernels)
    return parser


def _add_results(command: argparse.ArgumentParser) -> None:
    """What a command that fits is to write and show."""
    command.add_argument("--out", metavar="RUN.nc", help="save the fit as netCDF, for ArviZ and mfpda.load")
    command.add_argument("--figure", metavar="RUN.png", help="draw the file's figure(fit), or the risk if it has none")
    command.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_processes(command: argparse.ArgumentParser) -> None:
    several = command.add_argument_group(
        "several processes, which share the particles",
        "On one machine: --processes 2. On several, the same command on each with a --process of its own, and with the "
        "--coordinator where process 0 runs: --coordinator 10.0.0.1:9876 --processes 4 --process 1. Each needs the "
        "file and its data; process 0 writes.",
    )
    several.add_argument("--processes", type=int, metavar="N", help="how many there are (default 1)")
    several.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 listens")
    several.add_argument("--process", type=int, metavar="K", help="which one this is, from 0 to N - 1")
    several.add_argument("--launched", action="store_true", help=argparse.SUPPRESS)


def _overrides(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of fit that the command line gives."""
    given: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("rule", "kernel", "start", "particles", "outer_steps", "certify_every", "stop_at_gap", "memory")
        if getattr(options, name) is not None
    }
    if options.inner_steps is not None:
        parsed = schedules.parse(options.inner_steps)
        given["inner_steps"] = parsed if callable(parsed) or parsed != round(parsed) else int(parsed)
    if options.batch_size is not None:
        given["batch_size"] = None if options.batch_size == "none" else _whole(options.batch_size, "batch size")
    rule = given.get("rule", settings.get("rule", "dual_averaging"))
    default = "mala" if rule == "auto" else suited(RULES.resolve(rule))["kernel"]  # which suits whatever is picked
    in_file = KERNELS.resolve(settings.get("kernel", default))
    if given.get("kernel") == KERNELS.name_of(in_file):
        given["kernel"] = in_file  # the kernel of the file keeps the file's step size
    if options.step_size is not None:
        kernel = KERNELS.resolve(given.get("kernel", in_file))
        step_size = "auto" if options.step_size == "auto" else schedules.parse(options.step_size)
        given["kernel"] = dataclasses.replace(kernel, step_size=step_size)
    record = {
        "every": options.record_every,
        "particles": options.record_particles,
        "sites": tuple(options.record_sites.split(",")) if options.record_sites else None,
    }
    changed = {name: value for name, value in record.items() if value is not None}
    if changed:
        given["record"] = dataclasses.replace(settings.get("record", Record()), **changed)
    return given


def _whole(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"a whole number as {name}, or none", repr(text), "Give 50, say.") from None


def _module(path: str, *needed: str) -> ModuleType:
    """A file as a module, refused unless it defines what is needed; it may import its neighbours, as a script may."""
    file = Path(path)
    if not file.is_file():
        raise InputError("a Python file", f"no file at {path!r}", "See models/ for examples.")
    spec = importlib.util.spec_from_file_location(f"mfpda_file.{file.stem}", file)
    if spec is None or spec.loader is None:
        raise InputError("a Python file", repr(path), "Its name should end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    folder = str(file.parent.resolve())
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        advice = 'Install it; pip install "mfpda[models,mnist]" brings what the files in models/ import.'
        raise InputError(f"the library {error.name!r}, which {path} imports", "none", advice) from error
    finally:
        sys.path.remove(folder)
    missing = [name for name in needed if not hasattr(module, name)]
    if missing:
        wanted = " and ".join(f"`{name}`" for name in needed)
        advice = "See models/circles.py for a model, models/paper/convergence.py for a study."
        raise InputError(f"a file that defines {wanted}", f"no {' and no '.join(missing)}", advice)
    return module


def _drawn(figure: Callable[[], Any], path: str | Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    drawn = figure()
    if not hasattr(drawn, "savefig"):
        raise InputError("a matplotlib figure to save", type(drawn).__name__, "Return it from figure(...).")
    drawn.savefig(path, dpi=150)
