"""Several processes of one command: refused options, whose output is shown, and how they end."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from mfpda.cli import main
from mfpda.distributed import processes
from mfpda.persistence.files import read
from tests.helpers import MODEL_FILE as MODEL
from tests.kill_and_resume import compare_rows, compare_states, started


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "sine.py"
    path.write_text(MODEL)
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--process", "1"], "--coordinator HOST:PORT with --process, found none"),
        (["--processes", "2", "--process", "1"], "--coordinator HOST:PORT with --process, found none"),
        (["--coordinator", "127.0.0.1:9", "--process", "1"], "found no --processes"),
        (["--coordinator", "127.0.0.1:9", "--processes", "2"], "found no --process."),
        (["--coordinator", "127.0.0.1:9", "--processes", "2", "--process", "2"], "a --process from 0 to 1, of 2"),
        (["--coordinator", "127.0.0.1:9", "--processes", "2", "--process", "-1"], "a --process from 0 to 1, of 2"),
        (["--coordinator", "here", "--processes", "2", "--process", "1"], "a coordinator HOST:PORT"),
        (["--processes", "0"], "processes"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(model_file, capsys, arguments, match):
    assert main(["run", model_file, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mfpda: Expected ")
    assert match in error
    assert error.count("\n") == 1


def test_help_says_how_to_use_several_machines(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "--coordinator 10.0.0.1:9876 --processes 4 --process 1" in printed
    assert "--launched" not in printed


def launched(monkeypatch, *scripts):
    """``launch`` with these Python scripts in place of the command, to its exit code and the processes."""
    children = []

    def start(arguments, address, process, out):
        command = [sys.executable, "-c", scripts[process]]
        children.append(subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.PIPE))
        return children[-1]

    monkeypatch.setattr(processes, "_start", start)
    monkeypatch.setattr(processes, "PATIENCE", 0.5)
    return processes.launch([], len(scripts)), children


def test_all_that_end_well_end_well(monkeypatch, capfd):
    code, _ = launched(monkeypatch, "print('of 0')", "print('of 1')")
    assert code == 0
    assert capfd.readouterr() == ("of 0\n", "")


def test_one_that_is_killed_ends_the_others_and_is_named(monkeypatch, capfd):
    code, children = launched(
        monkeypatch, "import time; time.sleep(60)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert code == 1
    assert children[0].returncode == -signal.SIGKILL
    assert capfd.readouterr().err == "mfpda: process 1 of 2 was ended by SIGKILL; ended with it: 0\n"


def test_one_that_is_killed_is_named_also_if_another_fails_with_it(monkeypatch, capfd):
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr(processes, "_wait", lambda children: [child.wait() for child in children] and 0)
    code, _ = launched(monkeypatch, "import sys; sys.exit(1)", killed)
    assert code == 1
    assert capfd.readouterr().err == "mfpda: process 1 of 2 was ended by SIGKILL\n"


def test_one_that_fails_alone_is_heard(monkeypatch, capfd):
    code, _ = launched(monkeypatch, "import sys; sys.exit(1)", "import sys; sys.exit('the disk of 1 is full')")
    assert code == 1
    assert capfd.readouterr().err == "the disk of 1 is full\n"


def test_the_same_refusal_is_shown_once(monkeypatch, capfd):
    refused = "import sys; print('refused', file=sys.stderr); sys.exit(2)"
    code, _ = launched(monkeypatch, refused, refused)
    assert code == 2
    assert capfd.readouterr().err == "refused\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on(monkeypatch, capfd, number):
    """Every child notes the signal and ends well; the handlers are as they were afterwards."""
    before = signal.getsignal(number)
    noting = (
        "import signal, sys, time\n"
        f"signal.signal({number}, lambda *_: sys.exit(0))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )

    def send():
        while "ready" not in capfd.readouterr().out:
            time.sleep(0.05)
        time.sleep(0.3)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    code, children = launched(monkeypatch, noting, noting)
    thread.join()
    assert code == 0
    assert [child.returncode for child in children] == [0, 0]
    assert signal.getsignal(number) == before


def command(*arguments):
    command = [sys.executable, "-m", "mfpda", "run", *arguments, "--processes", "2", "--outer-steps", "100000"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until_it_steps(process):
    """Wait for the progress bar to show an outer step."""
    shown = ""
    while "risk=" not in shown:
        shown += process.stderr.read(1) or pytest.fail(shown)


@pytest.mark.slow
def test_a_run_in_two_processes_is_that_of_one(model_file, tmp_path, capfd):
    out = [str(tmp_path / f"{count}.nc") for count in (1, 2)]
    for count, path in enumerate(out, start=1):
        assert main(["run", model_file, "--processes", str(count), "--out", path]) == 0
    ours, theirs = (read(path)["posterior"]["w"].values for path in out)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    assert capfd.readouterr().out.count("1 run of 20 particles: finished") == 2
    assert main(["run", model_file, "--processes", "2", "--particles", "21"]) == 2
    assert capfd.readouterr().err.count("Take 20 or 22 particles") == 1


@pytest.mark.slow
def test_a_run_in_two_processes_is_interrupted_whole(model_file, tmp_path):
    process = command(model_file, "--out", str(tmp_path / "run.nc"))
    until_it_steps(process)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "1 run of 20 particles: interrupted" in printed
    assert read(tmp_path / "run.nc").attrs["status"] == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_a_process_that_is_killed_ends_the_run(model_file, which):
    process = command(model_file)
    until_it_steps(process)
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    children = [int(child) for child in found.stdout.split()]
    os.kill(children[which], signal.SIGKILL)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert f"mfpda: process {which} of 2 was ended by SIGKILL" in error


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(model_file):
    process = command(model_file)
    until_it_steps(process)
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    process.kill()
    process.communicate(timeout=120)
    until = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{child}") for child in found.stdout.split()):
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.slow
def test_two_processes_keep_one_run_which_sigterm_ends_and_which_goes_on_with_the_same_bits(tmp_path):
    """Process 0 alone writes; resuming starts as many processes as there were."""
    file = tmp_path / "sine.py"
    file.write_text(MODEL.replace('"outer_steps": 4', '"outer_steps": 200, "kernel": "mala"'))
    begin = lambda folder: started(["run", str(file), "--processes", "2", "--checkpoint", str(tmp_path / folder)])  # noqa: E731
    alone = begin("alone")
    assert alone.wait(timeout=300) == 0, alone.communicate()
    alone.communicate()
    process = begin("run")
    while process.poll() is None and not (tmp_path / "run" / "history.zarr" / "particle_history").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "SIGTERM ended the run after outer step" in errors
    resumed = started(["resume", str(tmp_path / "run")])
    _, errors = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, errors
    compare_states(tmp_path / "alone" / "checkpoint", tmp_path / "run" / "checkpoint")
    assert compare_rows(tmp_path / "alone", tmp_path / "run") == 200
