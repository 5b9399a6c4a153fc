"""What an outer step costs on several devices and in several processes, as ratios to one device.

    python tests/benchmarks/devices.py

1, 2 and 4 virtual devices, interleaved inside one process; then 1 process and 2 of one device each, in turns. XLA's CPU
device uses all cores already, so that on one machine little can be won: the ratios say what sharing costs. Recording is
told apart: the stiffness is a power iteration, whose 12 products devices have to sum.
"""

import json
import socket
import subprocess
import sys

import jax
import numpy as np
from inner_step import problem

import mfpda
from mfpda.distributed import mesh as devices

N, D, PARTICLES, INNER_STEPS = 1000, 50, 1000, 20
STEPS, ROUNDS = 10, 3


def seconds(every, given=None):
    """A mean outer step of the second half of a run that is recorded every so many steps."""
    model, x, y = problem(N, D)
    arguments = {"particles": PARTICLES, "inner_steps": INNER_STEPS, "outer_steps": 2 * STEPS, "progress": False}
    record = mfpda.Record(every=every, particles=1)
    fit = mfpda.fit(jax.random.key(0), model, (x, y), record=record, devices=given, **arguments)
    at = {row.outer_step: row.stats["seconds"] for row in fit.rows}
    return (at[2 * STEPS] - at[STEPS]) / STEPS


def shown(every, what, medians):
    recorded = "every step recorded" if every == 1 else f"every {every}th step recorded"
    ratios = ", ".join(f"{count} {what} {medians[count] / medians[1]:.2f} x" for count in medians if count > 1)
    print(f"{recorded}: {1e3 * medians[1]:.1f} ms an outer step on 1, {ratios}", flush=True)


def virtual():
    """1, 2 and 4 devices of this process, in turns."""
    counts = {count: jax.devices()[:count] for count in (1, 2, 4)}
    for every in (STEPS, 1):
        times = [{count: seconds(every, given) for count, given in counts.items()} for _ in range(ROUNDS + 1)][1:]
        shown(every, "virtual devices", {count: np.median([each[count] for each in times]) for count in counts})


def one(processes, coordinator, process):
    """A process of the comparison of processes: its medians as JSON."""
    if processes > 1:
        devices.connect(coordinator, processes, process)
    print(json.dumps([np.median([seconds(every) for _ in range(3)][1:]) for every in (STEPS, 1)]))


def several():
    """1 process and 2, in turns."""
    times = {1: [], 2: []}
    for _ in range(ROUNDS):
        for processes, found in times.items():
            with socket.create_server(("127.0.0.1", 0)) as server:
                address = f"127.0.0.1:{server.getsockname()[1]}"
            command = [sys.executable, __file__, str(processes), address]
            started = [
                subprocess.Popen([*command, str(process)], stdout=subprocess.PIPE) for process in range(processes)
            ]
            said = [child.communicate()[0] for child in started]
            found.append(json.loads(said[0].splitlines()[-1]))
    for place, every in enumerate((STEPS, 1)):
        shown(every, "processes", {count: np.median([each[place] for each in found]) for count, found in times.items()})


if __name__ == "__main__":
    if sys.argv[1:]:
        one(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    else:
        jax.config.update("jax_num_cpu_devices", 4)
        print(f"(n, d, M) = ({N}, {D}, {PARTICLES}), {INNER_STEPS} inner steps of ula")
        virtual()
        several()
