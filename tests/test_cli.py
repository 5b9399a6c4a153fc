"""The command line: what it hands to fit, prints, saves, refuses and resumes, and its options from fit's signature."""

import functools
import inspect
import shutil
import typing
from pathlib import Path

import jax
import numpy as np
import pytest

import mfpda
from mfpda import InputError, cli
from mfpda.cli import main
from mfpda.core import Schedule
from mfpda.kernels import KERNELS
from mfpda.persistence import files
from mfpda.results import Fit
from mfpda.results.verdict import Finding
from tests.helpers import MODEL_FILE, slow_but


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "sine.py"
    path.write_text(MODEL_FILE)
    return str(path)


def test_run_prints_saves_and_draws(model_file, tmp_path, capsys):
    out, figure = tmp_path / "run.nc", tmp_path / "run.png"
    assert main(["run", model_file, "--out", str(out), "--figure", str(figure)]) == 0
    printed = capsys.readouterr()
    assert "risk=" in printed.err
    assert all(
        word in printed.out for word in ("1 run of 20 particles: finished", "risk", "after outer step", "w", "sd")
    )
    assert "R-hat" not in printed.out
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert main(["summary", str(out)]) == 0
    assert capsys.readouterr().out in printed.out
    assert "stiffness" in printed.out


def fitted(monkeypatch, arguments):
    """The arguments that the command line hands to fit, and the fit."""
    seen = {}
    original = mfpda.fit

    @functools.wraps(original)  # the options are those of its signature
    def spy(key, model, data, **given):
        seen.update(given)
        seen["fit"] = original(key, model, data, **given)
        return seen["fit"]

    monkeypatch.setattr("mfpda.cli.fit", spy)
    assert main(arguments) == 0
    return seen


@pytest.mark.slow
def test_every_argument_of_fit_can_be_set(model_file, monkeypatch, capsys):
    seen = fitted(
        monkeypatch,
        ["run", model_file, "--quiet", "--rule", "latest", "--kernel", "gradient_descent", "--step-size",
         "inverse_sqrt:0.01", "--start", "resample", "--particles", "7", "--outer-steps", "6", "--inner-steps",
         "linear:2", "--batch-size", "5", "--memory", "1", "--record-every", "3", "--record-particles", "4",
         "--record-sites", "w"],
    )  # fmt: skip
    fit: Fit = seen["fit"]
    assert (len(fit.thetas), fit.outer_steps) == (7, 6)
    assert (fit.progress.inner_steps, fit.settings.batch_size) == (42, 5)
    assert (fit.rule, fit.start) == (mfpda.Latest(), mfpda.Resample())
    assert seen["kernel"] == mfpda.GradientDescent(mfpda.schedules.InverseSqrt(0.01))
    assert [row.outer_step for row in fit.rows] == [3, 6]
    assert capsys.readouterr().out.startswith("Model(neuron")
    assert {name: value.shape for name, value in fit.rows[0].particles.items()} == {"w": (4,)}
    assert (seen["progress"], seen["memory"]) == (False, 1.0)
    assert fitted(monkeypatch, ["run", model_file, "--quiet", "--batch-size", "none"])["batch_size"] is None


@pytest.mark.parametrize("kernel", slow_but(["blackjax:hmc"], ["mala", "blackjax:hmc", "numpyro:HMC"]))
def test_a_kernel_by_its_name(model_file, monkeypatch, capsys, kernel):
    seen = fitted(monkeypatch, ["run", model_file, "--quiet", "--kernel", kernel])
    assert KERNELS.name_of(seen["fit"].kernel) == kernel
    assert seen["fit"].rows[-1].stats["step_size"] > 0


def test_a_kernel_and_its_step_size(model_file, monkeypatch, capsys):
    seen = fitted(monkeypatch, ["run", model_file, "--quiet", "--kernel", "numpyro:HMC", "--step-size", "0.01"])
    assert seen["fit"].rows[-1].stats["step_size"] == pytest.approx(0.01)


def test_a_step_size_is_of_the_kernel_that_the_run_would_have(model_file, monkeypatch, capsys):
    for rule, kernel in {"auto": mfpda.HMC, "dual_averaging": mfpda.ULA}.items():
        seen = fitted(monkeypatch, ["run", model_file, "--quiet", "--rule", rule, "--step-size", "0.01"])
        assert isinstance(seen["fit"].kernel, kernel)
        monkeypatch.undo()


def test_a_run_until_certified_is_resumed_until_certified(model_file, tmp_path, monkeypatch, capsys):
    Path(model_file).write_text(MODEL_FILE.replace('"outer_steps": 4, ', '"tolerance": 0.5, '))
    folder = str(tmp_path / "run")
    assert main(["run", model_file, "--quiet", "--checkpoint", folder]) == 0
    seen = fitted(monkeypatch, ["resume", folder, "--quiet"])
    assert "outer_steps" not in seen
    assert seen["fit"].status is mfpda.Status.CERTIFIED


def test_too_little_memory_is_refused(model_file, capsys):
    assert main(["run", model_file, "--quiet", "--memory", "1e-9"]) == 2
    assert "GiB of memory for 20 particles" in capsys.readouterr().err


def test_kernels_are_listed_with_their_settings(capsys):
    assert main(["kernels"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in KERNELS)
    assert "num_integration_steps=3" in printed


@pytest.mark.slow
def test_the_key_decides(model_file, monkeypatch, capsys):
    thetas = [
        np.asarray(fitted(monkeypatch, ["run", model_file, "--quiet", "--key", key])["fit"].thetas) for key in "001"
    ]
    np.testing.assert_array_equal(thetas[0], thetas[1])
    assert not np.array_equal(thetas[0], thetas[2])


def test_a_run_that_diverges_is_saved_and_fails(model_file, tmp_path, capsys):
    out = tmp_path / "run.nc"
    unadjusted = ["--rule", "dual_averaging", "--step-size", "1e30"]  # an adjusted kernel would refuse such steps
    assert main(["run", model_file, "--quiet", *unadjusted, "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert "the run diverged after outer step 0" in printed.err
    assert "diverged" in printed.out
    assert main(["summary", str(out)]) == 0


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["run", "nothing.py"], "no file at"),
        (["run", "MODEL", "--kernel", "nuts"], "name of a kernel"),
        (["run", "MODEL", "--out", "none/run.nc"], "does not exist"),
        (["run", "MODEL", "--figure", "none/run.png"], "does not exist"),
        pytest.param(
            ["run", "MODEL", "--out", "/proc/run.nc"],  # there not even root can
            "cannot be written to",
            marks=pytest.mark.skipif(not Path("/proc").is_dir(), reason="no /proc here"),
        ),
        (["run", "MODEL", "--inner-steps", "many"], "a schedule as one of"),
        (["run", "MODEL", "--batch-size", "few"], "a whole number as --batch-size, or none, found 'few'"),
        (["run", "MODEL", "--particles", "2.5"], "a whole number as --particles, found '2.5'"),
        (["run", "MODEL", "--stop-at-gap", "small"], "a number as --stop-at-gap, found 'small'"),
        (["run", "MODEL", "--step-size", "inf"], "a positive finite number as step_size, found inf"),
        (["run", "MODEL", "--inner-steps", "inf"], "a positive finite number as inner_steps, found inf"),
        (["run", "MODEL", "--inner-steps", "nan"], "a positive finite number as inner_steps, found nan"),
        (["run", "MODEL", "--checkpoint-every", "2"], "--checkpoint FOLDER with --checkpoint-every"),
        (["run", "EMPTY"], "no model and no data"),
        (["summary", "EMPTY"], "no netCDF"),
    ],
)
def test_refusals_are_one_line_and_exit_two(model_file, tmp_path, capsys, arguments, match):
    empty = tmp_path / "empty.py"
    empty.write_text("")
    paths = {"MODEL": model_file, "EMPTY": str(empty)}
    assert main([paths.get(argument, argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mfpda: Expected ")
    assert match in error
    assert error.count("\n") == 1


def test_summary_of_several_runs_has_rhat(small, tmp_path, capsys):
    fits = [mfpda.fit(jax.random.key(k), small.model, small.data, **small.quick) for k in range(2)]
    mfpda.to_inference_data(*fits).to_netcdf(tmp_path / "both.nc")
    assert main(["summary", str(tmp_path / "both.nc")]) == 0
    printed = capsys.readouterr().out
    assert "2 runs of 30 particles" in printed
    assert "R-hat" in printed
    assert "ESS" in printed


@pytest.mark.slow
def test_certify_finds_the_model_and_prints_a_verdict(model_file, tmp_path, capsys):
    out = str(tmp_path / "run.nc")
    assert main(["run", model_file, "--out", out, "--quiet", "--certify-every", "2"]) == 0
    assert "gap upper" in capsys.readouterr().out
    assert main(["certify", out]) == 0
    printed = capsys.readouterr().out
    assert "L(q_g) - L* is at most" in printed
    assert any(finding.value.capitalize() in printed for finding in Finding)


def test_certify_without_the_model(small, tmp_path, capsys):
    out = tmp_path / "run.nc"
    mfpda.fit(jax.random.key(0), small.model, small.data, **small.quick).save(out)
    assert main(["certify", str(out)]) == 2
    assert "--model FILE.py" in capsys.readouterr().err


def test_a_kept_run_is_resumed_from_its_folder(model_file, tmp_path, capsys):
    """Longer than was asked for at first; with its file where it was, or moved; with what the command line said."""
    folder, out = str(tmp_path / "run"), str(tmp_path / "run.nc")
    begun = ["run", model_file, "--kernel", "mala", "--particles", "7", "--key", "3", "--quiet"]
    assert main([*begun, "--checkpoint", folder, "--checkpoint-every", "2"]) == 0
    assert main(["resume", folder, "--outer-steps", "6", "--out", out, "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "1 run of 7 particles: finished" in printed
    assert "after outer step" in printed
    whole = str(tmp_path / "whole.nc")
    assert main([*begun, "--outer-steps", "6", "--out", whole]) == 0
    ours, theirs = (files.read(path) for path in (out, whole))
    np.testing.assert_array_equal(ours["posterior"]["w"], theirs["posterior"]["w"])
    capsys.readouterr()

    moved = tmp_path / "moved.py"
    shutil.copy(model_file, moved)
    assert main(["resume", folder, "--model", str(moved), "--outer-steps", "5", "--quiet"]) == 2
    assert "at least the 6 outer steps already done, found 5" in capsys.readouterr().err
    assert main(["resume", folder, "--model", str(moved), "--quiet"]) == 0  # to the 6 that were asked for last
    capsys.readouterr()
    moved.write_text(moved.read_text().replace("0.02", "0.03"))
    assert main(["resume", folder, "--model", str(moved), "--quiet"]) == 2
    assert "has changed (its digest differs)" in capsys.readouterr().err
    assert main(["run", model_file, "--checkpoint", folder]) == 2
    assert "that of an earlier run" in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "nowhere")]) == 2
    assert "no folder at" in capsys.readouterr().err


def test_a_run_that_was_kept_in_python_is_resumed_there(small, tmp_path, capsys):
    mfpda.fit(jax.random.key(0), small.model, small.data, checkpoint=tmp_path / "run", **small.quick)
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert "one that was made in Python. Resume it in Python" in capsys.readouterr().err


# options from the signature of fit


def keywords(function):
    return [name for name, each in inspect.signature(function).parameters.items() if each.kind is each.KEYWORD_ONLY]


def test_every_argument_of_fit_is_an_option_or_is_only_for_python():
    options = cli.fit_options()
    assert [*options, *cli.ONLY_IN_PYTHON] == sorted(keywords(mfpda.fit), key=lambda name: name in cli.ONLY_IN_PYTHON)
    kinds = {name: typing.get_type_hints(mfpda.fit)[name] for name in options if name not in cli.PLUGS}
    assert set(kinds.values()) <= {int, float, float | None, int | None, int | Schedule | None}, kinds
    parser = cli._parser()
    for name in options:
        parsed = parser.parse_args(["run", "file.py", f"--{name.replace('_', '-')}", "text"])
        assert getattr(parsed, name) == "text"


def test_options_say_what_they_are():
    options = cli.fit_options()
    for name, option in options.items():
        assert option.help.strip(" ."), name
        assert option.metavar, name
    assert "dual_newton" in options["rule"].help
    assert "auto" in options["rule"].help
    assert options["particles"].help == "M, the number of particles."
    assert options["batch_size"].help.endswith("Or none.")


@pytest.mark.parametrize("command", ["run", "resume", "certify", "summary", "study", "kernels"])
def test_every_command_and_every_option_has_a_help_text(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out
    commands = next(action for action in cli._parser()._actions if action.choices)
    parser = commands.choices[command]
    assert parser.description
    assert next(choice.help for choice in commands._choices_actions if choice.dest == command)
    undescribed = [action.dest for action in parser._actions if action.option_strings and not action.help]
    assert undescribed == []


def fake_fit(
    key: object,
    model: object,
    data: object = None,
    *,
    kernel: str = "ula",
    rounds: int = 3,
    ratio: float = 0.5,
    limit: float | None = None,
    width: int | None = None,
    pace: int | Schedule | None = None,
    throw: bool = True,
):
    """A fit of another day.

    Args:
        kernel: a name.
        rounds: how many
            rounds. All of them.
        ratio: 50% of it.
        limit: where it ends.
        width: how wide it is.
        pace: how fast.
        throw: whether.
    """


@pytest.mark.parametrize(
    ("name", "text", "value", "metavar", "said"),
    [
        ("rounds", "7", 7, "N", "how many rounds."),
        ("ratio", "0.25", 0.25, "NUMBER", "50%% of it."),
        ("limit", "3", 3.0, "NUMBER", "where it ends."),
        ("width", "4", 4, "N", "how wide it is. Or none."),
        ("width", "none", None, "N", "how wide it is. Or none."),
        ("pace", "20", 20, "SCHEDULE", "how fast. 20 or linear:5."),
        ("pace", "linear:5", mfpda.schedules.Linear(5.0), "SCHEDULE", "how fast. 20 or linear:5."),
        ("kernel", "mala", "mala", "NAME", ", ".join(KERNELS)),
    ],
)
def test_a_new_argument_of_fit_becomes_an_option(monkeypatch, name, text, value, metavar, said):
    monkeypatch.setattr(cli, "fit", fake_fit)
    options = cli.fit_options()
    assert list(options) == ["kernel", "rounds", "ratio", "limit", "width", "pace"]
    assert (options[name].metavar, options[name].help) == (metavar, said)
    converted = options[name].convert(text)
    assert converted == value
    assert type(converted) is type(value)
    parsed = cli._parser().parse_args(["run", "file.py", f"--{name}", text])
    assert getattr(parsed, name) == text


def test_help_of_a_new_argument_can_be_printed(monkeypatch, capsys):
    """A per cent sign in a docstring is no directive of argparse."""
    monkeypatch.setattr(cli, "fit", fake_fit)
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "--ratio NUMBER" in (printed := capsys.readouterr().out)
    assert "50% of it." in printed


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("rounds", "2.5", "a whole number as --rounds, found '2.5'"),
        ("ratio", "half", "a number as --ratio, found 'half'"),
        ("width", "wide", "a whole number as --width, or none, found 'wide'"),
        ("pace", "fast", "a schedule as one of"),
    ],
)
def test_its_text_is_refused_by_name(monkeypatch, name, text, match):
    monkeypatch.setattr(cli, "fit", fake_fit)
    with pytest.raises(InputError, match=match):
        cli.fit_options()[name].convert(text)
