"""Files written in one piece: a reader sees the old file or the new one. Trees and data sets are netCDF."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import xarray as xr

from mfpda.errors import InputError

FORMAT = 1


def write(path: str | os.PathLike[str], tree: xr.DataTree) -> None:
    """Write the tree as netCDF."""
    check_writable(path)
    with in_one_piece(path) as unfinished:
        tree.to_netcdf(unfinished, engine="h5netcdf")


@contextlib.contextmanager
def in_one_piece(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary name to write to. The file moves to its path when all went well."""
    folder, name = os.path.split(path)
    unfinished = Path(folder, f".{name}.unfinished")
    try:
        yield unfinished
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a path that no file can be written to."""
    path = Path(path)
    if path.is_dir():
        raise InputError("the name of a file to write", f"the folder {str(path)!r}", "Add a file name, such as run.nc.")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()  # rights alone do not tell: a file system may refuse files
    except OSError as error:
        what = "cannot be written to" if path.parent.is_dir() else "does not exist"
        found = f"{str(path.parent)!r}, which {what}"
        raise InputError("a file in a folder that can be written to", found, "Give another folder.") from error


def write_dataset(dataset: xr.Dataset, path: str | os.PathLike[str]) -> None:
    """One data set as netCDF, compressed, in one piece."""
    packed = {name: {"zlib": True, "complevel": 6} for name, values in dataset.items() if values.dtype.kind in "fiub"}
    with in_one_piece(path) as unfinished:
        dataset.to_netcdf(unfinished, engine="h5netcdf", encoding=packed)


def read_dataset(path: str | os.PathLike[str]) -> xr.Dataset:
    """A data set that ``write_dataset`` wrote, in memory."""
    if not Path(path).is_file():
        raise InputError("the data set of a study", f"no file at {str(path)!r}", "Run the study first.")
    return xr.load_dataset(path, engine="h5netcdf")


def read(path: str | os.PathLike[str]) -> xr.DataTree:
    """The tree in a file that ``write`` made, whole and in memory."""
    advice = "Give a file that Fit.save or `mfpda run --out` wrote."
    if not Path(path).is_file():
        raise InputError("a file of a saved fit", f"no file at {str(path)!r}", advice)
    try:
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            tree = tree.load()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        size = Path(path).stat().st_size
        found = f"a file of {size} bytes that is no netCDF or is cut short ({type(error).__name__}: {error})"
        raise InputError("a file of a saved fit", found, advice + " If it was copied, copy it again.") from error
    if tree.attrs.get("creator") != "mfpda" or "posterior" not in tree.children:
        study = tree.attrs.get("study")
        found = f"the data set of the study {study!r}" if study else "a netCDF file that mfpda did not write"
        raise InputError("a file of a saved fit", found, "Open it with xarray." if study else advice)
    if int(tree.attrs["format"]) > FORMAT:
        raise InputError(
            f"a file of format {FORMAT} or older", f"format {tree.attrs['format']}", "Install a newer mfpda."
        )
    return tree
