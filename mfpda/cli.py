"""The command line: ``mfpda run``, ``resume``, ``certify``, ``summary``, ``study`` and ``kernels``."""

import argparse
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import typing
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax

from mfpda import studies
from mfpda.core import schedules
from mfpda.distributed import is_writer, processes
from mfpda.engine.fit import fit
from mfpda.errors import InputError, RunError, Status, Terminated
from mfpda.kernels import KERNELS, with_step_size
from mfpda.persistence import Checkpoint, SavedRun, files
from mfpda.progress import Record
from mfpda.registry import Registry
from mfpda.results import plots
from mfpda.results.load import load
from mfpda.results.summary import summary
from mfpda.results.verdict import verdict
from mfpda.rules import RULES
from mfpda.starts import STARTS

MODEL_FILE = "model_file"  # the attribute of a saved run that says where its model is declared
MODEL = "model", "data"  # what a file of a model defines
STUDY = "study", "claims", "figure"
PLUGS: dict[str, Registry] = {"rule": RULES, "kernel": KERNELS, "start": STARTS}
ONLY_IN_PYTHON = "record", "metrics", "checkpoint", "resume", "devices", "progress", "throw"  # or in another form
PYTHON_NAMES = ("mfpda.MALA(step_size=0.01)", "mfpda.FromBlackJAX(blackjax.hmc, num_integration_steps=5)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0 for success, 1 for a failed run, 2 for refused input."""
    options = _parser().parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return options.command(options)
    except InputError as error:
        print(f"mfpda: {error}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    """Fit the model of a file, print its summary, and save the results, even if the run failed."""
    return _in_processes(options, _run)


def _in_processes(options: argparse.Namespace, command: Callable[[argparse.Namespace], int]) -> int:
    """Run a command in this process, in several processes that are started here, or as one of those."""
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
            print(f"mfpda: `mfpda resume {folder}` resumes from its last checkpoint", file=sys.stderr)
        return code
    return command(options)


def _run(options: argparse.Namespace) -> int:
    for path in filter(None, (options.out, options.figure)):
        files.check_writable(path)
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
    """Resume a run from its checkpoint. It ends bit for bit as if it had never been interrupted."""
    begun = SavedRun.read(options.folder).origin.get("options", {})
    if begun.get("launched") and options.processes is None:  # in the number of processes that it was started in
        options.processes = begun["processes"]
        options.arguments = [*options.arguments, "--processes", str(begun["processes"])]
    return _in_processes(options, _resume)


def _resume(options: argparse.Namespace) -> int:
    for path in filter(None, (options.out, options.figure)):
        files.check_writable(path)
    saved = SavedRun.read(options.folder)
    origin = saved.origin
    if "file" not in origin:
        advice = "Resume it in Python: mfpda.fit(..., resume=folder)."
        raise InputError("a checkpoint of `mfpda run`", "one that was made in Python", advice)
    file = options.model or origin["file"]
    if not Path(file).is_file():
        advice = "If it has moved, give its place: mfpda resume FOLDER --model FILE.py."
        raise InputError("the model file of the run", f"no file at {file!r}", advice)
    if _digest(file) != origin["digest"]:
        advice = "Give the file as it was: mfpda resume FOLDER --model FILE.py."
        raise InputError("the model file of the run", f"that {file!r} has changed (its digest differs)", advice)
    module = _module(file, *MODEL)
    begun = argparse.Namespace(**origin["options"])
    settings = dict(getattr(module, "settings", {}))
    arguments = settings | _overrides(begun, settings)
    if options.outer_steps or not saved.settings.until_certified:  # else it ends when it is certified
        arguments["outer_steps"] = options.outer_steps or saved.ends[-1]
    every, seconds = begun.checkpoint_every or 1, begun.checkpoint_seconds
    arguments |= {"resume": options.folder, "checkpoint": Checkpoint(options.folder, every, seconds)}
    options.file, options.key = file, begun.key
    return _fitted(options, module, arguments)


def _fitted(options: argparse.Namespace, module: ModuleType, arguments: dict[str, Any]) -> int:
    """Fit, print the summary, and save the results."""
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
        print(f"mfpda: `mfpda resume {result.folder}` continues after outer step {result.outer_steps}", file=sys.stderr)
    if options.out:
        named = {**result.progress.provenance, MODEL_FILE: str(Path(options.file).resolve())}
        progress = dataclasses.replace(result.progress, provenance=named)
        dataclasses.replace(result, progress=progress).save(options.out)
    print(summary(result.idata), end="\n\n")
    if options.out:
        print(f"saved {options.out}")
    if options.figure and not result.rows:
        print(f"not drawn: {options.figure}, no outer step was finished")
    elif options.figure:
        own = getattr(module, "figure", lambda fit: plots.stat(fit.idata).figure)
        _drawn(lambda: own(result), options.figure)
        print(f"drawn {options.figure}")
    return code


def _origin(options: argparse.Namespace) -> dict[str, Any]:
    """What ``resume`` needs to make the same call again: the model's file, its digest, and the options."""
    asked = {name: value for name, value in vars(options).items() if name not in ("command", "arguments")}
    return {"file": str(Path(options.file).resolve()), "digest": _digest(options.file), "options": asked}


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def summarise(options: argparse.Namespace) -> int:
    """Print a saved run, or several runs stacked as chains, as a table."""
    print(summary(files.read(options.file)))
    return 0


def certify(options: argparse.Namespace) -> int:
    """Bound the distance of a saved run to the global optimum, and give a verdict in words."""
    path = options.model or files.read(options.file).attrs.get(MODEL_FILE)
    if path is None:
        advice = f"The model is code and is not in the file: mfpda certify {options.file} --model FILE.py."
        raise InputError("the Python file of the model", "none named in the run", advice)
    found = verdict(jax.random.key(options.key), load(options.file, _module(path, *MODEL).model))
    print(found.certificate, found, sep="\n\n")
    return 0


def study(options: argparse.Namespace) -> int:
    """Make the runs behind a figure: save the data set, draw the figure, and check the claims."""
    module, folder = _module(options.file, *STUDY), Path(options.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("a folder to write to", f"{options.out!r}: {error.strerror}", "Give another --out.") from None
    path = folder / f"{Path(options.file).stem}{'_quick' if options.quick else ''}.nc"
    files.check_writable(path)
    if options.redraw:
        dataset = files.read_dataset(path)
    else:
        try:
            dataset = studies.run(module, options.quick, folder)
        except KeyboardInterrupt:
            print("mfpda: stopped. The same command continues from the finished runs.", file=sys.stderr)
            return 1
        files.write_dataset(dataset, path)
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
            settings = ", ".join(f"{setting}={value!r}" for setting, value in kernel.settings_by_name.items())
            law = f"adjusted, tuned to {kernel.target_acceptance}" if kernel.adjusted else "unadjusted"
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

    def add(name: str, function: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=function.__doc__)
        command.set_defaults(command=function)
        return command

    command = add("run", run, "fit the model of a file")
    command.add_argument("file", help="a Python file with `model`, `data(key)` and `settings`, as in models/")
    _add_key(command)
    command.add_argument("--checkpoint", metavar="FOLDER", help="a new folder to write the run to, for mfpda resume")
    command.add_argument(
        "--checkpoint-every", type=int, metavar="N", help="outer steps between checkpoints (default 1)"
    )
    command.add_argument("--checkpoint-seconds", type=float, metavar="S", help="seconds between checkpoints, instead")
    _add_results(command)
    _add_fit_options(command.add_argument_group("arguments of fit (default: the file's settings)"))

    command = add("resume", resume, "resume a run from its checkpoint")
    command.add_argument("folder", help="the folder of mfpda run --checkpoint")
    command.add_argument("--model", metavar="FILE.py", help="the file of its model, if it has moved")
    command.add_argument("--outer-steps", type=int, metavar="N", help="a larger number of outer steps in all")
    _add_results(command)

    command = add("certify", certify, "bound a saved run's distance to the optimum")
    command.add_argument("file", metavar="RUN.nc")
    command.add_argument("--model", metavar="FILE.py", help="the file of its model (default: the one it was run from)")
    _add_key(command)

    add("summary", summarise, "print a saved run as a table").add_argument("file", metavar="RUN.nc")

    command = add("study", study, "make the runs behind a figure")
    command.add_argument("file", help="a Python file with study(quick), claims(dataset) and figure(dataset)")
    command.add_argument("--quick", action="store_true", help="a small version, to see that it works")
    command.add_argument("--out", metavar="DIR", default="results", help="for NAME.nc, .png and .txt (default results)")
    command.add_argument("--redraw", action="store_true", help="only draw the figure and check the claims of NAME.nc")

    add("kernels", list_kernels, "list the kernels")
    return parser


def _add_key(command: argparse.ArgumentParser) -> None:
    command.add_argument("--key", type=int, default=0, help="seed of the random key (default 0)")


def _add_results(command: argparse.ArgumentParser) -> None:
    """The options of a command that fits: what it writes and shows, and its processes."""
    command.add_argument("--out", metavar="RUN.nc", help="save the fit as netCDF, for ArviZ and mfpda.load")
    command.add_argument("--figure", metavar="RUN.png", help="draw the file's figure(fit), or the risk if it has none")
    command.add_argument("--quiet", action="store_true", help="no progress bar")
    several = command.add_argument_group(
        "several processes, which share the particles",
        "On one machine: --processes 2. On several machines: the same command on each with its own --process, and with "
        "the --coordinator where process 0 runs: --coordinator 10.0.0.1:9876 --processes 4 --process 1. Each needs the "
        "file and its data. Process 0 writes.",
    )
    several.add_argument("--processes", type=int, metavar="N", help="how many there are (default 1)")
    several.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 listens")
    several.add_argument("--process", type=int, metavar="K", help="the number of this one, from 0 to N - 1")
    several.add_argument("--launched", action="store_true", help=argparse.SUPPRESS)


def _add_fit_options(group: argparse._ArgumentGroup) -> None:
    for name, option in fit_options().items():
        group.add_argument(f"--{name.replace('_', '-')}", metavar=option.metavar, help=option.help)
    group.add_argument("--step-size", metavar="SCHEDULE", help="of the kernel: auto, 0.01 or inverse_sqrt:0.1")
    group.add_argument("--record-every", type=int, metavar="N", help="outer steps between recorded ones")
    group.add_argument("--record-particles", type=int, metavar="N", help="particles in the history")
    group.add_argument("--record-sites", metavar="A,B", help="sites in the history")


class Option(NamedTuple):
    """An argument of ``fit`` on the command line: how its text becomes a value, and how it is shown."""

    convert: Callable[[str], Any]
    metavar: str
    help: str


def fit_options() -> dict[str, Option]:
    """The arguments of ``fit`` that the command line offers, read from its signature and docstring."""
    hints, found = typing.get_type_hints(fit), {}
    for name, parameter in inspect.signature(fit).parameters.items():
        kinds = typing.get_args(hints[name]) or (hints[name],)
        if parameter.kind is not parameter.KEYWORD_ONLY or name in ONLY_IN_PYTHON:
            continue
        if name in PLUGS:
            found[name] = Option(str, "NAME", ", ".join([*PLUGS[name], *PLUGS[name].also]))
        elif int not in kinds:
            found[name] = Option(partial(_number, float, name), "NUMBER", _documented(name))
        elif len(kinds) == 1:
            found[name] = Option(partial(_number, int, name), "N", _documented(name))
        elif len(kinds) == 2:
            found[name] = Option(partial(_number_or_none, name), "N", _documented(name) + " Or none.")
        else:
            found[name] = Option(_schedule, "SCHEDULE", _documented(name) + " 20 or linear:5.")
    return found


def _documented(name: str) -> str:
    """The first sentence that the docstring of ``fit`` has for an argument."""
    found = re.search(rf"^ *{name}: (.*?[.])(?:\s|$)", fit.__doc__ or "", re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()).replace("%", "%%") if found else ""


def _overrides(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of fit that the command line gives."""
    given: dict[str, Any] = {
        name: option.convert(getattr(options, name))
        for name, option in fit_options().items()
        if getattr(options, name) is not None
    }
    rule = given.get("rule", settings.get("rule", "auto"))
    newton = "dual_newton"  # what "auto" chooses where it can
    default = RULES.resolve(newton if rule == "auto" else rule).defaults.kernel
    in_file = KERNELS.resolve(settings.get("kernel", default))
    if given.get("kernel") == KERNELS.name_of(in_file):
        given["kernel"] = in_file  # the kernel of the file keeps the file's step size
    if options.step_size is not None:
        kernel = KERNELS.resolve(given.get("kernel", in_file))
        step_size = "auto" if options.step_size == "auto" else schedules.parse(options.step_size)
        given["kernel"] = with_step_size(kernel, step_size)
    record = {
        "every": options.record_every,
        "particles": options.record_particles,
        "sites": tuple(options.record_sites.split(",")) if options.record_sites else None,
    }
    changed = {name: value for name, value in record.items() if value is not None}
    if changed:
        given["record"] = dataclasses.replace(settings.get("record", Record()), **changed)
    return given


def _number(kind: type, name: str, text: str, otherwise: str = "") -> Any:
    try:
        return kind(text)
    except ValueError:
        what = "whole number" if kind is int else "number"
        expected = f"a {what} as --{name.replace('_', '-')}{otherwise}"
        raise InputError(expected, repr(text), "Give 50, for example.") from None


def _number_or_none(name: str, text: str) -> int | None:
    return None if text == "none" else _number(int, name, text, ", or none")


def _schedule(text: str) -> Any:
    """A schedule, or a number that is an int if it is whole."""
    parsed = schedules.parse(text)
    return parsed if callable(parsed) or not parsed.is_integer() else int(parsed)


def _module(path: str, *needed: str) -> ModuleType:
    """A file as a module, refused unless it defines the needed names. Like a script, it may import its neighbours."""
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
