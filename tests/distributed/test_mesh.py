"""Particles over several devices and processes: the same results, no word in the inner loop, and stopping together."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import mfpda
from mfpda.distributed import mesh as devices

ROOT = Path(__file__).parents[2]


def started(*arguments):
    command = [sys.executable, "-m", "tests.distributed.on_devices", *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def answer(process):
    out, error = process.communicate(timeout=540)
    assert process.returncode == 0, error.decode()
    return json.loads(out.decode().splitlines()[-1])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def quick():
    return answer(started("quick"))


@pytest.fixture(params=["quick", pytest.param("all", marks=pytest.mark.slow)])
def found(request):
    return request.getfixturevalue("quick") if request.param == "quick" else answer(started(request.param))


def test_any_number_of_devices_gives_the_same_run_and_the_inner_loop_exchanges_nothing(found):
    """Within 1e-5 of the largest number after 20 outer steps, on a well-conditioned problem.

    The compiled programs are read: what a loop's computations, and all that they call, exchange. That the reading finds
    what there is to find is seen on the mean of the 40 predictions, and on a loop that pools acceptance on purpose.
    """
    for run in found["runs"]:
        assert run["status"] == "finished", run
        assert max(run["off"].values()) < 1e-5, run
        assert run["metric"] < 1e-5, run
        assert run["ordinary"], run
        # a stream has buckets of 4, 8, 16 and 32 batches, the first of them as large as the 40 examples of other runs
        assert run["compiled"] in ((3, 4) if "stream" in run["case"] else (1,)), run
    for name, program in found["programs"].items():
        print(name, program["all"])
        assert program["loops"] == 1, name
        assert program["inside"] == [], name
        assert any("f32[40]" in shape for shape, _ in program["all"]), name
    assert found["pooled"]["inside"] != []


@pytest.mark.slow
def test_two_processes_give_the_same_run_resume_and_stop_after_the_same_step(quick):
    """A metric that fails at its fourth call in process 1 alone stops both after outer step 3."""
    address = f"127.0.0.1:{free_port()}"
    children = [started("joined", address, str(process)) for process in range(2)]
    for process, found in enumerate(map(answer, children)):
        for run in ("whole", "resumed"):
            for name, values in quick["alone"].items():
                np.testing.assert_allclose(found[run][name], values, rtol=0, atol=1e-5 * np.abs(values).max())
        assert found["failed"] == [3, 3, "failed"]
        assert found["writer"] == (process == 0)
        assert found["agreed"] == 7


def test_particles_that_devices_cannot_share_are_refused(small):
    class Device:
        process_index = 0

    three = [Device() for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "Device", Device)
        with pytest.raises(mfpda.InputError, match=r"that 3 devices can share, found 20\. Take 18 or 21 particles"):
            mfpda.fit(jax.random.key(0), small.model, small.data, particles=20, devices=three)
        with pytest.raises(mfpda.InputError, match=r"found 2\. Take 3 particles"):
            devices.mesh_over(three, 2)


@pytest.mark.parametrize(
    ("given", "match"),
    [([], "a list of JAX devices"), ([0], "a list of JAX devices"), (2 * jax.devices(), "no device twice")],
)
def test_devices_that_are_none_are_refused(given, match):
    with pytest.raises(mfpda.InputError, match=match):
        devices.mesh_over(given, 20)


@pytest.mark.slow
def test_one_device_of_its_own_gives_the_bits_of_the_default(small):
    fits = [
        mfpda.fit(jax.random.key(0), small.model, small.data, devices=given, **(small.quick | {"outer_steps": 2}))
        for given in (None, jax.devices()[:1])
    ]
    np.testing.assert_array_equal(fits[0].thetas, fits[1].thetas)


def test_one_process_agrees_with_itself_and_gathers_nothing():
    array = jax.numpy.ones(3)
    assert devices.agreed(2) == 2
    assert devices.is_writer()
    assert devices.gathered({"a": array, "b": None})["a"] is array


def test_a_coordinator_that_cannot_be_reached_is_refused():
    began = time.monotonic()
    with pytest.raises(mfpda.InputError, match=r"no answer at '127\.0\.0\.1:.* in 0\.3 s: Connection refused"):
        devices.connect(f"127.0.0.1:{free_port()}", 2, 1, timeout=0.3)
    assert time.monotonic() - began < 5


def test_a_port_that_is_taken_is_refused():
    with (
        socket.create_server(("", 0)) as server,
        pytest.raises(mfpda.InputError, match="a free port for the coordinator"),
    ):
        devices.connect(f"127.0.0.1:{server.getsockname()[1]}", 2, 0, timeout=1)


@pytest.mark.parametrize("address", ["localhost", ":9000", "localhost:", "localhost:port", "localhost:70000"])
def test_an_address_without_host_or_port_is_refused(address):
    with pytest.raises(mfpda.InputError, match="a coordinator HOST:PORT"):
        devices.connect(address, 2, 1, timeout=0.1)
