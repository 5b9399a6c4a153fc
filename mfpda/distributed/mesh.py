"""Particles over several devices, of one process or of several: where arrays live, and what processes agree on.

A mesh has one axis, over which the particles are spread; all else (data, coefficients, the rule's state) is the same on
every device. Particles meet only in the predictions, once per outer step: the inner loop runs on each device by itself.
With several processes (``jax.distributed``) every one of them runs the same program on the same keys and data, process
0 alone writes, and ``mesh = None`` is JAX's default device alone, where nothing here does anything.
"""

import contextlib
import functools
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mfpda.distributed.signals import Received
from mfpda.errors import InputError

PARTICLES = "particles"  # the axis of every mesh
SPREAD, SAME = PartitionSpec(PARTICLES), PartitionSpec()
GO_ON, REACHED, INTERRUPTED, FAILED = 0, 1, 2, 3  # what a process tells the others between two outer steps


def mesh_over(devices: Sequence[jax.Device] | None, particles: int) -> Mesh | None:
    """The mesh for M particles: over these devices; by default over those of all processes, if there are several."""
    if devices is None:
        if jax.process_count() == 1:
            return None
        devices = jax.devices()
    devices = list(devices) if isinstance(devices, Sequence) else [devices]
    if not devices or not all(isinstance(device, jax.Device) for device in devices):
        raise InputError("a list of JAX devices", repr(devices), "Give jax.devices(), or None for the default device.")
    if len(set(devices)) < len(devices):
        raise InputError("every device once", repr(devices), "Give jax.devices(), say.")
    if {device.process_index for device in devices} != set(range(jax.process_count())):
        found = f"devices of {len({device.process_index for device in devices})}"
        raise InputError(f"devices of all {jax.process_count()} processes", found, "Give jax.devices(), or none.")
    count = len(devices)
    if particles % count:
        below, above = particles - particles % count, particles + -particles % count
        working = f"{below} or {above}" if below else f"{above}"
        advice = f"Take {working} particles: as many on each device."
        raise InputError(f"a number of particles that {count} devices can share", str(particles), advice)
    return Mesh(np.array(devices), (PARTICLES,))


def spread(tree: Any, mesh: Mesh | None) -> Any:
    """Arrays with a leading axis over particles, an equal part of them on each device."""
    one = mesh is not None and mesh.size == 1  # a compiled step then returns SAME, and would be compiled again
    return _placed(tree, mesh, SAME if one else SPREAD)


def replicated(tree: Any, mesh: Mesh | None) -> Any:
    """Arrays whole on every device; every process passes the same values."""
    return _placed(tree, mesh, SAME)


def _placed(tree: Any, mesh: Mesh | None, spec: PartitionSpec) -> Any:
    if mesh is None:
        return tree
    sharding = NamedSharding(mesh, spec)

    def place(leaf):
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    return jax.tree.map(place, tree)


def gathered(tree: Any) -> Any:
    """The tree with every array whole on one device of this process. With several processes all of them must call it.

    What is on one device already, and what is no JAX array, stays as it is.
    """
    leaves, structure = jax.tree.flatten(tree)
    apart = [k for k, leaf in enumerate(leaves) if isinstance(getattr(leaf, "sharding", None), NamedSharding)]
    if apart:
        mesh = leaves[apart[0]].sharding.mesh
        for k, whole in zip(apart, _whole(mesh)([leaves[k] for k in apart]), strict=True):
            leaves[k] = whole.addressable_data(0)
    return jax.tree.unflatten(structure, leaves)


@functools.cache
def _whole(mesh: Mesh) -> Callable[[Any], Any]:
    return jax.jit(lambda arrays: arrays, out_shardings=NamedSharding(mesh, SAME))


def on_each(mesh: Mesh | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function(keys, ensemble, *others)`` on each device's own particles, without a word between devices.

    Keys, ensemble and all that is returned have a leading axis over particles; the others are the same on every device.
    A loop inside that ends when all particles are done (a tree of NUTS) then ends on each device by itself.
    """
    if mesh is None:
        return function

    def mapped(keys, ensemble, *others):
        specs = (SPREAD, SPREAD, *(SAME for _ in others))
        shared = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=SPREAD, check_vma=False)
        return shared(keys, ensemble, *others)

    return mapped


def several_processes() -> bool:
    return jax.process_count() > 1


def is_writer() -> bool:
    """Whether this process is the one that writes files and shows progress."""
    return jax.process_index() == 0


def agreed(code: int) -> int:
    """The largest of the processes' codes. All processes must call it; with one process it is that process's own.

    Outside of a run's loop it has to be called by all at the same place; inside, ``Agreement`` calls it.
    """
    if not several_processes():
        return code
    mesh = Mesh(np.array(jax.devices()), (PARTICLES,))
    sharding = NamedSharding(mesh, SPREAD)
    codes = jax.make_array_from_callback((mesh.size,), sharding, lambda _: np.full(1, code, np.int32))
    return int(_largest(mesh)(codes))


@functools.cache
def _largest(mesh: Mesh) -> Callable[[Any], Any]:
    return jax.jit(lambda codes: codes.max(), out_shardings=NamedSharding(mesh, SAME))


class OtherProcessError(RuntimeError):
    """Another process of this run failed."""

    def __init__(self) -> None:
        super().__init__("another process failed, whose own message says why")


def is_lost(error: BaseException) -> bool:
    """Whether this is what is seen of another process that died in the middle of what they computed together."""
    return isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)


def in_first_process(action: Callable[[], None]) -> None:
    """Do this in process 0, while the others wait; where it fails, all of them raise."""
    error: Exception | None = None
    if is_writer():
        try:
            action()
        except Exception as raised:
            error = raised
    code = agreed(FAILED if error else GO_ON)
    if error:
        raise error
    if code == FAILED:
        raise OtherProcessError


class Agreement:
    """How the processes of a run stop together: ``with Agreement(received) as agreement``, ``agreement.check()`` in
    every step.

    A process that left in the middle of a step would leave the others waiting in it for ever. So, where there are
    several, signals are noted, and looked at in ``check``, which all processes call before what they compute together:
    where one was interrupted, or has failed since the last check, all of them raise there. The end of the block is one
    more check.
    """

    def __init__(self, received: Received) -> None:
        self.received = received

    def __enter__(self) -> "Agreement":
        return self

    def check(self) -> None:
        """KeyboardInterrupt in all processes if one was interrupted, OtherProcessError if another has failed."""
        self.reached(False)

    def reached(self, ours: bool) -> bool:
        """A check, and whether a process has reached what the run was to reach."""
        if not several_processes():
            return ours
        code = agreed(INTERRUPTED if self.received.interrupted else REACHED if ours else GO_ON)
        if code == FAILED:
            raise OtherProcessError
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return code == REACHED

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.check()
        elif not isinstance(error, (KeyboardInterrupt, OtherProcessError)) and not is_lost(error):
            with contextlib.suppress(Exception):
                agreed(FAILED)  # the others are in their next check, or come to it


def connect(coordinator: str, processes: int, process: int, timeout: float = 300.0) -> None:
    """Join ``processes`` processes, this one being number ``process``, at HOST:PORT, where process 0 listens.

    To be called before JAX computes anything. ``timeout`` is how many seconds the others may take to arrive.
    """
    host, port = _address(coordinator)
    if process == 0:
        _check_free(coordinator, port)
    else:
        _wait_for(coordinator, host, port, timeout)
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
    jax.distributed.initialize(coordinator, processes, process, initialization_timeout=max(1, int(timeout)))


def _address(coordinator: str) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError("a coordinator HOST:PORT", repr(coordinator), "Give 10.0.0.1:9876, say: where process 0 runs.")
    return host.strip("[]"), int(port)


def _check_free(coordinator: str, port: int) -> None:
    """JAX would end the process where the port of the coordinator is taken."""
    try:
        with socket.create_server(("", port)):
            pass
    except OSError as error:
        found = f"{coordinator!r}: {error.strerror}"
        raise InputError("a free port for the coordinator", found, "Give another port to all processes.") from None


def _wait_for(coordinator: str, host: str, port: int, timeout: float) -> None:
    """JAX would end the process where nobody answers."""
    until = time.monotonic() + timeout
    while True:
        try:
            with socket.create_connection((host, port), timeout=max(0.1, until - time.monotonic())):
                return
        except OSError as error:
            if time.monotonic() + 0.2 > until:
                found = f"no answer at {coordinator!r} in {timeout:g} s: {error.strerror or error}"
                advice = "Start process 0 on that host, with the same port, and let a firewall pass it."
                raise InputError("process 0 at the coordinator's address", found, advice) from None
            time.sleep(0.2)
