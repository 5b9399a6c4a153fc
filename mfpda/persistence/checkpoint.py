"""Checkpoints: a folder with all that the next outer step needs. A killed run resumes from it with the same bits.

    run/beginning       what the run was given: settings, versions, key, fingerprints of model and data, first particles
                        (and draws of the prior, if the model has an init)
    run/checkpoint      its present state: t, particles with their kernel's state, rule, coefficients
    run/best            an earlier state, if its certificate has the smallest bound so far (not of a stream)
    run/history.zarr    what it has recorded (see ``mfpda.persistence.history_store``); a stream has anchors.zarr too

``mfpda.persistence.container`` describes the first two files. The folder appears under its name only when it holds a
checkpoint of step 0, so that a run can be resumed from every folder that exists.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from mfpda.core import positive, positive_count
from mfpda.errors import InputError

BEGINNING, CHECKPOINT, BEST = "beginning", "checkpoint", "best"
FIXED = "rule", "kernel", "particles", "batch_size", "data", "devices"  # a resumed run cannot change these
ON_PURPOSE = "fit(..., resume=mfpda.load(folder, model, data=data), checkpoint=another_folder)."
PER_STEP = "step_size", "inner_steps"  # settings with one entry per outer step


@dataclass(frozen=True)
class Checkpoint:
    """Where a run writes its checkpoint and its history, and how often.

    It writes after every ``every`` outer steps. With ``seconds`` it writes after the first outer step that ends at
    least this long after the last checkpoint. ``origin`` is stored as JSON: a command needs it to make the same call of
    ``fit`` again.

    >>> Checkpoint("run", seconds=60)
    Checkpoint(folder='run', every=1, seconds=60, origin={})
    """

    folder: str | os.PathLike[str]
    every: int = 1
    seconds: float | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if not isinstance(self.folder, (str, os.PathLike)):
            raise InputError("the name of a folder", repr(self.folder), 'Give checkpoint="run", for example.')
        positive_count(self.every, "Checkpoint.every")
        if self.seconds is not None:
            positive(self.seconds, "Checkpoint.seconds")

    @property
    def path(self) -> Path:
        return Path(os.path.abspath(self.folder))

    def holds(self, folder: Path) -> bool:
        """Whether this checkpoint is in ``folder``."""
        return self.path.resolve() == folder.resolve()


def check_new(path: Path) -> None:
    """Refuse a folder that holds another run or other files, or that cannot be written."""
    if path.is_file():
        raise InputError("a folder for a checkpoint", f"the file {str(path)!r}", "Give the name of a new folder.")
    if (path / CHECKPOINT).exists():
        advice = "Resume it (fit(..., resume=folder), or mfpda resume FOLDER), or give another folder."
        raise InputError("a new folder for a checkpoint", f"that of an earlier run, {str(path)!r}", advice)
    if path.is_dir() and any(path.iterdir()):
        raise InputError("a new or empty folder for a checkpoint", f"{str(path)!r} with other files", "Give another.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        trial = path.with_name(f".{path.name}.trial")
        trial.mkdir(exist_ok=True)
        trial.rmdir()
    except OSError as error:
        found = f"{str(path)!r}: {error.strerror}"
        raise InputError("a folder that can be written", found, "Give one where you may write.") from error


def check_same(expected: Mapping[str, Any], found: Mapping[str, Any], folder: Path) -> None:
    """Refuse to resume with anything other than what the run was given, and name it.

    A run may become longer, so settings with one entry per outer step are compared over their common length.
    """
    for name in expected:
        ours, theirs = found.get(name), expected[name]
        if name in PER_STEP and isinstance(ours, list) and isinstance(theirs, list):
            common = min(len(ours), len(theirs))
            ours, theirs = ours[:common], theirs[:common]
        if ours != theirs:
            raise InputError(
                f"the {name.replace('_', ' ')} of the run in {str(folder)!r}, {_shown(name, theirs, ours)}",
                _shown(name, ours, theirs),
                "Pass the same value to resume."
                + ("" if name in FIXED else " To change it on purpose, call " + ON_PURPOSE),
            )


def as_json(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What a run was given, after a round trip through JSON, without the addresses in names of functions."""
    addresses = re.compile(r" at 0x[0-9a-f]+")  # they differ between processes
    return json.loads(addresses.sub("", json.dumps(identity)))


def data_digest(x: ArrayLike, y: ArrayLike | None) -> str:
    """A digest that tells one data set from another."""
    digest = hashlib.blake2b(digest_size=16)
    for array in (x, y):
        if array is not None:
            array = np.ascontiguousarray(array)
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(array.data)
    return digest.hexdigest()


def _shown(name: str, value: Any, other: Any) -> str:
    """A value for a message. Of a setting with one entry per outer step, it is the first that differs."""
    if name in PER_STEP and isinstance(value, list):
        pairs = zip(value, other if isinstance(other, list) else [None] * len(value), strict=True)
        k = next(k for k, pair in enumerate(pairs) if pair[0] != pair[1])
        return f"{value[k]} at outer step {k + 1}"
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)
