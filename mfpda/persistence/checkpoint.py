"""Checkpoints: all that the next outer step needs, in a folder from which a killed run goes on with the same bits.

    run/beginning       what the run was given: settings, versions, key, fingerprints of model and data, first particles
    run/checkpoint      where it stands: t, particles with their kernel's state, rule, coefficients
    run/history.zarr    what it has recorded (see ``mfpda.history_store``); anchors.zarr beside it, of a stream

The first two are files of one kind: facts as JSON and named arrays, every bit of them under a checksum, written beside
their place and then put there, so that a reader sees the old one or the new one. The folder itself takes its name only
when it holds a checkpoint of step 0: a folder that is there can be gone on from.
"""

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfpda.core.schedules import positive, positive_count
from mfpda.errors import InputError
from mfpda.persistence import files as storage

MAGIC = b"mfpda checkpoint 1\n"
PREFIX = struct.Struct("<IQ")  # checksum of the header, its length
BEGINNING, CHECKPOINT = "beginning", "checkpoint"
FIXED = "rule", "kernel", "particles", "batch_size", "data", "devices"  # what no run can change on its way
ON_PURPOSE = "fit(..., resume=mfpda.load(folder, model, data=data), checkpoint=another_folder)."
PER_STEP = "step_size", "inner_steps"  # what a run is given one of for each outer step


@dataclass(frozen=True)
class Checkpoint:
    """Where a run keeps its checkpoint and its history, and how often it is written: after every so many outer steps,
    or after the first outer step that ends so many seconds after the last one.

    ``origin`` is kept beside them, as JSON: what a command needs to make the same call of ``fit`` again.

    >>> Checkpoint("run", seconds=60)
    Checkpoint(folder='run', every=1, seconds=60, origin={})
    """

    folder: str | os.PathLike[str]
    every: int = 1
    seconds: float | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if not isinstance(self.folder, (str, os.PathLike)):
            raise InputError("the name of a folder", repr(self.folder), 'Give checkpoint="run/", say.')
        positive_count(self.every, "Checkpoint.every")
        if self.seconds is not None:
            positive(self.seconds, "Checkpoint.seconds")

    @property
    def path(self) -> Path:
        return Path(os.path.abspath(self.folder))

    def holds(self, folder: Path) -> bool:
        """Whether it is kept in this folder."""
        return self.path.resolve() == folder.resolve()


class Contents(NamedTuple):
    """What a file of this kind holds."""

    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write(path: Path, contents: Contents) -> None:
    """Put the file in place, whole."""
    arrays = {name: np.ascontiguousarray(array).reshape(np.shape(array)) for name, array in contents.arrays.items()}
    described = [
        {"name": name, "type": array.dtype.str, "shape": array.shape, "checksum": zlib.crc32(array.data)}
        for name, array in arrays.items()
    ]
    header = json.dumps({"facts": contents.facts, "arrays": described}).encode()
    with storage.in_one_piece(path) as unfinished, open(unfinished, "wb") as file:
        file.write(MAGIC + PREFIX.pack(zlib.crc32(header), len(header)) + header)
        for array in arrays.values():
            file.write(array.data)


def read(path: Path) -> Contents:
    """What was written there, refused where a bit of it is not as it was."""
    try:
        whole = path.read_bytes()
    except OSError as error:
        advice = "Give the folder of fit(..., checkpoint=folder)."
        raise InputError("the folder of a checkpoint", f"no {path.name} in {str(path.parent)!r}", advice) from error
    start = len(MAGIC) + PREFIX.size
    if not whole.startswith(MAGIC) or len(whole) < start:
        raise _damaged(path, "magic number")
    checksum, length = PREFIX.unpack(whole[len(MAGIC) : start])
    header = whole[start : start + length]
    if zlib.crc32(header) != checksum or len(header) != length:
        raise _damaged(path, "header")
    described = json.loads(header)
    arrays, place = {}, start + length
    for each in described["arrays"]:
        dtype, shape = np.dtype(each["type"]), tuple(each["shape"])
        size = dtype.itemsize * int(np.prod(shape))
        content = whole[place : place + size]
        if len(content) != size or zlib.crc32(content) != each["checksum"]:
            raise _damaged(path, each["name"])
        arrays[each["name"]] = np.frombuffer(content, dtype).reshape(shape)
        place += size
    if place != len(whole):
        raise _damaged(path, "end")
    return Contents(described["facts"], arrays)


def check_new(path: Path) -> None:
    """Refuse a place where a run cannot be kept: another run's, a folder of other things, one that is not writable."""
    if path.is_file():
        raise InputError("a folder for a checkpoint", f"the file {str(path)!r}", "Give the name of a new folder.")
    if (path / CHECKPOINT).exists():
        advice = "Go on with it (fit(..., resume=folder), or mfpda resume FOLDER), or give another folder."
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
    """Refuse to go on with anything other than what the run was given, and name it. A run may become longer: what has
    one entry an outer step is compared as far as both go."""
    for name in expected:
        ours, theirs = found.get(name), expected[name]
        if name in PER_STEP and isinstance(ours, list) and isinstance(theirs, list):
            common = min(len(ours), len(theirs))
            ours, theirs = ours[:common], theirs[:common]
        if ours != theirs:
            raise InputError(
                f"the {name.replace('_', ' ')} of the run in {str(folder)!r}, {_shown(name, theirs, ours)}",
                _shown(name, ours, theirs),
                "Pass the same, for the same bits."
                + ("" if name in FIXED else " To go on with another on purpose, " + ON_PURPOSE),
            )


def data_digest(x: Any, y: Any) -> str:
    """What tells one data set from another."""
    digest = hashlib.blake2b(digest_size=16)
    for array in (x, y):
        if array is not None:
            array = np.ascontiguousarray(array)
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(array.data)
    return digest.hexdigest()


def _shown(name: str, value: Any, other: Any) -> str:
    """A value for a message; of what there is one of for each outer step, the first that differs."""
    if name in PER_STEP and isinstance(value, list):
        pairs = zip(value, other if isinstance(other, list) else [None] * len(value), strict=True)
        k = next(k for k, pair in enumerate(pairs) if pair[0] != pair[1])
        return f"{value[k]} at outer step {k + 1}"
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


def _damaged(path: Path, what: str) -> InputError:
    return InputError(
        f"a checkpoint as it was written, in {str(path.parent)!r}",
        f"another {what} in its file {path.name!r}: a bit has changed since, or the file is cut short",
        "Copy the folder again from where it is whole, or begin the run anew in another.",
    )
