"""Files that hold facts as JSON and named arrays, every bit under a checksum.

A file is written beside its place and then moved there, so that a reader sees the old one or the new one.
"""

import json
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfpda.errors import InputError
from mfpda.persistence.files import in_one_piece

MAGIC = b"mfpda checkpoint 1\n"
PREFIX = struct.Struct("<IQ")  # checksum of the header, its length


class Contents(NamedTuple):
    """The facts and the arrays of a file."""

    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write(path: Path, contents: Contents) -> None:
    """Write the file in one piece."""
    arrays = {name: np.ascontiguousarray(array).reshape(np.shape(array)) for name, array in contents.arrays.items()}
    described = [
        {"name": name, "type": array.dtype.str, "shape": array.shape, "checksum": zlib.crc32(array.data)}
        for name, array in arrays.items()
    ]
    header = json.dumps({"facts": contents.facts, "arrays": described}).encode()
    with in_one_piece(path) as unfinished, open(unfinished, "wb") as file:
        file.write(MAGIC + PREFIX.pack(zlib.crc32(header), len(header)) + header)
        for array in arrays.values():
            file.write(array.data)


def read(path: Path) -> Contents:
    """The contents of a file, refused if a bit has changed."""
    try:
        whole = memoryview(path.read_bytes())
    except OSError as error:
        advice = "Give the folder of fit(..., checkpoint=folder)."
        raise InputError("the folder of a checkpoint", f"no {path.name} in {str(path.parent)!r}", advice) from error
    start = len(MAGIC) + PREFIX.size
    if whole[: len(MAGIC)] != MAGIC or len(whole) < start:
        raise _damaged(path, "magic number")
    checksum, length = PREFIX.unpack(whole[len(MAGIC) : start])
    header = whole[start : start + length]
    if zlib.crc32(header) != checksum or len(header) != length:
        raise _damaged(path, "header")
    described = json.loads(bytes(header))
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


def _damaged(path: Path, what: str) -> InputError:
    return InputError(
        f"a checkpoint as it was written, in {str(path.parent)!r}",
        f"another {what} in its file {path.name!r}: a bit has changed since, or the file is cut short",
        "Copy the folder again from an intact copy, or begin the run again in another folder.",
    )
