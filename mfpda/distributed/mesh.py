"""Particles over several devices, in one process or in several: where arrays live, and how processes agree.

A mesh has one axis, and the particles are split along it. Every device has a copy of everything else: data,
coefficients and the rule's state. Particles interact only through the predictions, once per outer step, so every device
runs the inner loop by itself. With several processes (``jax.distributed``), all run the same program on the same keys
and data, and only process 0 writes files. ``mesh = None`` means JAX's default device: arrays then stay where they are.
"""

import contextlib
import functools
import socket
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mfpda.distributed.signals import StopRequest
from mfpda.errors import InputError

PARTICLES = "particles"  # the axis of every mesh
SPREAD, SAME = PartitionSpec(PARTICLES), PartitionSpec()
CONTINUE, REACHED, INTERRUPTED, FAILED = 0, 1, 2, 3  # what a process tells the others between two outer steps
Tree = TypeVar("Tree")  # any pytree
Result = TypeVar("Result")


def mesh_over(devices: Sequence[jax.Device] | None, particles: int) -> Mesh | None:
    """Build the mesh for M particles over these devices. Several processes use all devices by default."""
    if devices is None:
        if jax.process_count() == 1:
            return None
        devices = jax.devices()
    devices = list(devices) if isinstance(devices, Sequence) else [devices]
    if not devices or not all(isinstance(device, jax.Device) for device in devices):
        raise InputError("a list of JAX devices", repr(devices), "Give jax.devices(), or None for the default device.")
    if len(set(devices)) < len(devices):
        raise InputError("no device twice", repr(devices), "Give jax.devices(), for example.")
    processes, count = {device.process_index for device in devices}, len(devices)
    if processes != set(range(jax.process_count())):
        expected = f"devices of all {jax.process_count()} processes"
        raise InputError(expected, f"devices of {len(processes)}", "Give jax.devices(), or None.")
    if particles % count:
        below, above = particles - particles % count, particles + -particles % count
        advice = f"Take {f'{below} or ' if below else ''}{above} particles, the same number on each device."
        raise InputError(f"a number of particles that {count} devices can share", str(particles), advice)
    return Mesh(np.array(devices), (PARTICLES,))


def spread(tree: Tree, mesh: Mesh | None) -> Tree:
    """Split arrays along their leading axis, over particles, into equal parts on the devices."""
    # on one device a compiled step returns SAME, so SPREAD would compile it twice
    return _placed(tree, mesh, SAME if mesh and mesh.size == 1 else SPREAD)


def replicated(tree: Tree, mesh: Mesh | None) -> Tree:
    """Copy whole arrays to every device. Every process must pass the same values."""
    return _placed(tree, mesh, SAME)


def _placed(tree: Tree, mesh: Mesh | None, spec: PartitionSpec) -> Tree:
    if mesh is None:
        return tree
    sharding = NamedSharding(mesh, spec)

    def place(leaf):
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    return jax.tree.map(place, tree)


def gathered(tree: Tree) -> Tree:
    """Gather every array of the tree on one device of this process. All processes must call this together.

    Arrays on one device, and leaves that are no JAX arrays, stay as they are.
    """
    leaves, structure = jax.tree.flatten(tree)
    sharded = [k for k, leaf in enumerate(leaves) if isinstance(getattr(leaf, "sharding", None), NamedSharding)]
    if sharded:
        together = _everywhere(leaves[sharded[0]].sharding.mesh, list)
        for k, whole in zip(sharded, together([leaves[k] for k in sharded]), strict=True):
            leaves[k] = whole.addressable_data(0)
    return jax.tree.unflatten(structure, leaves)


@functools.cache
def _everywhere(mesh: Mesh, function: Callable[..., Result]) -> Callable[..., Result]:
    """Compile the function so that every device gets its whole result."""
    return jax.jit(function, out_shardings=NamedSharding(mesh, SAME))


def on_each(mesh: Mesh | None, function: Callable[..., Result]) -> Callable[..., Result]:
    """Run ``function(keys, ensemble, *others)`` on each device's own particles, without communication.

    Keys, ensemble and results have a leading axis over particles. The other arguments are the same on every device. A
    loop that runs until all particles are done (a tree of NUTS, for example) then ends on each device separately.
    """
    if mesh is None:
        return function

    def mapped(*arguments):
        specs = (SPREAD, SPREAD, *(SAME for _ in arguments[2:]))
        return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=SPREAD, check_vma=False)(*arguments)

    return mapped


def several_processes() -> bool:
    return jax.process_count() > 1


def is_writer() -> bool:
    """Whether this process writes files and shows progress."""
    return jax.process_index() == 0


def agreed(code: int) -> int:
    """Return the largest of the numbers that the processes pass. With one process, that is its own number.

    All processes must call this at the same point of the program. In the loop of a run, ``Agreement`` calls it.
    """
    if not several_processes():
        return code
    mesh = Mesh(np.array(jax.devices()), (PARTICLES,))
    sharding = NamedSharding(mesh, SPREAD)
    codes = jax.make_array_from_callback((mesh.size,), sharding, lambda _: np.full(1, code, np.int32))
    return int(_everywhere(mesh, jnp.max)(codes))


class OtherProcessError(RuntimeError):
    """Another process of this run failed."""

    def __init__(self) -> None:
        super().__init__("another process failed; its own message says why")


def is_lost(error: BaseException) -> bool:
    """Whether this error means that another process died during a joint computation."""
    return isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)


def in_first_process(action: Callable[[], None]) -> None:
    """Run the action in process 0 while the others wait. If it fails, all processes raise."""
    error: Exception | None = None
    if is_writer():
        try:
            action()
        except Exception as raised:
            error = raised
    code = agreed(FAILED if error else CONTINUE)
    if error:
        raise error
    if code == FAILED:
        raise OtherProcessError


class Agreement:
    """Make the processes of a run stop together: ``with Agreement(stop_request) as agreement``.

    If one process left in the middle of a step, the others would wait for it forever. With several processes, signals
    are therefore only recorded. All processes call ``check`` before each joint computation. If one of them was
    interrupted, or has failed since the last check, all raise there. The end of the block is a last check.
    """

    def __init__(self, stop_request: StopRequest) -> None:
        self.stop_request = stop_request

    def __enter__(self) -> "Agreement":
        return self

    def check(self) -> None:
        """Raise KeyboardInterrupt if any process was interrupted, and OtherProcessError if another one has failed."""
        self.reached(False)

    def reached(self, ours: bool) -> bool:
        """Check, and return whether any process has reached the goal of the run."""
        if not several_processes():
            return ours
        code = agreed(INTERRUPTED if self.stop_request.interrupted else REACHED if ours else CONTINUE)
        if code == FAILED:
            raise OtherProcessError
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return code == REACHED

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.check()
        elif not isinstance(error, (KeyboardInterrupt, OtherProcessError)) and not is_lost(error):
            with contextlib.suppress(Exception):
                agreed(FAILED)  # the others learn it in their next check


def connect(coordinator: str, processes: int, process: int, timeout: float = 300.0) -> None:
    """Join a group of ``processes`` processes as number ``process``. Process 0 listens at ``coordinator``, HOST:PORT.

    Call this before JAX computes anything. The other processes have ``timeout`` seconds to join.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        advice = "Give the address of process 0, such as 10.0.0.1:9876."
        raise InputError("a coordinator HOST:PORT", repr(coordinator), advice)
    if process > 0:
        _wait_for(coordinator, (host.strip("[]"), int(port)), timeout)
    else:
        try:
            socket.create_server(("", int(port))).close()
        except OSError as error:  # JAX would end the process
            found = f"{coordinator!r}: {error.strerror}"
            raise InputError("a free port for the coordinator", found, "Give another port to all processes.") from None
    jax.config.update("jax_enable_preemption_service", False)  # else it swallows SIGTERM
    jax.distributed.initialize(coordinator, processes, process, initialization_timeout=max(1, int(timeout)))


def _wait_for(coordinator: str, address: tuple[str, int], timeout: float) -> None:
    """Wait until process 0 answers, and refuse if it does not. JAX would end the process instead."""
    until = time.monotonic() + timeout
    while True:
        try:
            return socket.create_connection(address, timeout=max(0.1, until - time.monotonic())).close()
        except OSError as error:
            if time.monotonic() + 0.2 > until:
                found = f"no answer at {coordinator!r} in {timeout:g} s: {error.strerror or error}"
                advice = "Start process 0 on that host with the same port, and open that port in the firewall."
                raise InputError("process 0 at the coordinator's address", found, advice) from None
            time.sleep(0.2)
