"""Recorded outer steps on disk: a zarr store that xarray can open at any time, one chunk per step and variable.

Its arrays have their full length from the first row on. So a step only adds files, each written in one piece, and never
rewrites metadata. A row's numbers are written after its particles, and mark it complete. Every chunk carries a
checksum, so that a damaged one is refused.

    history.zarr/particle_history   a variable per site, dims (chain, outer_step, draw, site dims)
    history.zarr/outer_stats        the variable "values", dims (chain, outer_step, statistic)
    anchors.zarr                    of a stream, x and y, dims (outer_step, example, ...)
"""

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from mfpda.errors import InputError
from mfpda.persistence.files import in_one_piece
from mfpda.progress import Row

FOLDER, HISTORY, STATS, ANCHORS = "history.zarr", "particle_history", "outer_stats", "anchors.zarr"
CHECKSUM = 4  # bytes at the end of every chunk


@contextlib.contextmanager
def appearing_whole(path: Path) -> Iterator[Path]:
    """A folder to fill. It gets its name when all went well. Remains of an interrupted attempt are removed."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


class HistoryStore:
    """The rows of one run, and the anchors of a stream, in the folder of its checkpoint."""

    def __init__(self, folder: Path, steps: Sequence[int]):
        """``steps`` are the outer steps that the run will record, in order."""
        self.folder, self.steps = folder, list(steps)
        self._places = {t: k for k, t in enumerate(self.steps)}
        self._arrays: dict[str, Any] = {}

    @functools.cached_property
    def sites(self) -> list[str]:
        """The sites that are recorded."""
        return [str(name) for name in self._group(FOLDER, HISTORY).attrs["sites"]]

    @functools.cached_property
    def statistics(self) -> list[str]:
        """The numbers that are recorded."""
        return [str(name) for name in self._array(FOLDER, STATS, "statistic")[:]]

    def write(self, row: Row, described: Callable[[Row], tuple[xr.Dataset, xr.Dataset]]) -> Row:
        """Write the row, and return one that holds no particles but reads them from disk.

        ``described(row)`` gives the row as two data sets, of its particles and of its numbers. The first row that is
        written defines the layout of the store.
        """
        if not (self.folder / FOLDER).exists():
            self._create(*described(row))
        k = self._places[row.outer_step]
        for name, value in row.particles.items():
            self._put(value, k, FOLDER, HISTORY, name)
        self.write_stats(row)
        return self.read_later(row)

    def read_later(self, row: Row) -> Row:
        """The row without its particles, which are read from disk when needed."""
        return row._replace(particles=StoredParticles(self, self._places[row.outer_step]))

    def write_stats(self, row: Row) -> None:
        values = np.array([row.stats.get(name, np.nan) for name in self.statistics])
        self._put(values, self._places[row.outer_step], FOLDER, STATS, "values")

    def rows(self, last: int) -> list[Row]:
        """The rows of outer steps up to ``last``, refused where one of them is missing or damaged."""
        done = [t for t in self.steps if t <= last]
        if not done:
            return []
        with self._refused_if_damaged():
            values, names, rows = self._array(FOLDER, STATS, "values")[0], self.statistics, []
            for k, t in enumerate(done):
                whole = all(self._has(k, FOLDER, HISTORY, name) for name in self.sites)
                if not whole or np.isnan(values[k, names.index("risk")]):
                    raise ValueError(f"outer step {t} is incomplete")
                rows.append(Row(t, dict(zip(names, values[k].tolist(), strict=True)), StoredParticles(self, k)))
            return rows

    def opened(self, rows: int) -> xr.Dataset:
        """The first rows of the particle history as a data set that reads from disk when needed."""
        with self._refused_if_damaged():
            dataset = xr.open_dataset(
                self.folder / FOLDER, engine="zarr", group=HISTORY, chunks=None, cache=False, consolidated=False,
                decode_cf=False,
            )  # fmt: skip
        words = [name for name, labels in dataset.coords.items() if labels.dtype.kind not in "iuf"]
        labels = {name: [str(label) for label in dataset[name].values] for name in words}
        return dataset[self.sites].assign_coords(labels).isel(outer_step=slice(0, rows)).drop_attrs()

    def lengthen(self) -> None:
        """Make room for all steps in a store that was made for fewer. An interrupted call can be repeated."""
        if not (self.folder / FOLDER).exists():
            return
        for group in (STATS, HISTORY):
            arrays = dict(self._group(FOLDER, group).arrays())
            steps = arrays.pop("outer_step")
            for array in arrays.values():
                if "outer_step" in array.metadata.dimension_names and array.shape[1] != len(self.steps):
                    array.resize((1, len(self.steps), *array.shape[2:]))
            if steps.shape != (len(self.steps),) or steps[:].tolist() != self.steps:
                steps.resize((len(self.steps),))
                steps[:] = np.asarray(self.steps)
        self._arrays.clear()

    def write_anchors(self, t: int, x: np.ndarray, y: np.ndarray | None) -> None:
        """Batch t of a stream."""
        batch = {"x": x} if y is None else {"x": x, "y": y}
        if not (self.folder / ANCHORS).exists():
            with self._new_store(ANCHORS) as group:
                for name, value in batch.items():
                    dims = ("outer_step", "example", *(f"{name}_dim_{axis}" for axis in range(value.ndim - 1)))
                    _new_array(group, name, dims, (max(t, *self.steps), *value.shape), value.dtype)
        for name, value in batch.items():
            array = self._array(ANCHORS, name)
            if array.shape[0] < t:
                array.resize((max(t, *self.steps), *value.shape))
            self._put(value, t - 1, ANCHORS, name)

    def anchors(self, last: int) -> tuple[np.ndarray, np.ndarray | None]:
        """The examples of a stream's batches 1 to ``last``."""
        with self._refused_if_damaged():
            whole = {}
            for name, array in self._group(ANCHORS).arrays():
                missing = [t for t in range(1, last + 1) if not self._has(t - 1, ANCHORS, name)]
                if missing:
                    raise ValueError(f"batch {missing[0]} is incomplete")
                batches = np.asarray(array[:last])
                whole[name] = batches.reshape(-1, *batches.shape[2:])
        return whole["x"], whole.get("y")

    def particles(self, name: str, k: int) -> np.ndarray:
        with self._refused_if_damaged():
            return np.asarray(self._array(FOLDER, HISTORY, name)[0, k])

    def _create(self, particles: xr.Dataset, stats: xr.Dataset) -> None:
        """Arrays of the full length, and coordinates."""
        with self._new_store(FOLDER) as store:
            group = store.create_group(STATS)
            _new_coordinate(group, "chain", np.zeros(1, int))
            _new_coordinate(group, "outer_step", np.asarray(self.steps))
            _new_coordinate(group, "statistic", np.asarray(list(stats.data_vars)))
            numbers = (1, len(self.steps), len(stats.data_vars))
            _new_array(group, "values", ("chain", "outer_step", "statistic"), numbers, np.dtype(float))
            group = store.create_group(HISTORY, attributes={"sites": [str(name) for name in particles.data_vars]})
            for name, labels in (dict(particles.coords) | {"outer_step": self.steps}).items():
                _new_coordinate(group, str(name), np.asarray(labels))
            for name, variable in particles.data_vars.items():
                shape = tuple(len(self.steps) if d == "outer_step" else n for d, n in variable.sizes.items())
                _new_array(group, str(name), variable.dims, shape, variable.dtype)

    @contextlib.contextmanager
    def _new_store(self, name: str) -> Iterator[Any]:
        import zarr  # takes a while, hence late

        with appearing_whole(self.folder / name) as folder:
            yield zarr.create_group(folder, zarr_format=3)

    def _put(self, value: np.ndarray, k: int, *names: str) -> None:
        """Write the chunk of the k-th step as zarr would, numbers and then their checksum, in a fifth of its time."""
        import google_crc32c

        content = np.ascontiguousarray(value, self._array(*names).dtype.newbyteorder("<")).tobytes()
        with in_one_piece(self._chunk(k, *names)) as unfinished, open(unfinished, "wb", buffering=0) as file:
            file.write(content + google_crc32c.value(content).to_bytes(CHECKSUM, "little"))

    def _has(self, k: int, *names: str) -> bool:
        """Whether the chunk of the k-th step exists in its full length."""
        array, chunk = self._array(*names), self._chunk(k, *names)
        size = array.dtype.itemsize * int(np.prod(array.chunks)) + CHECKSUM
        return os.path.isfile(chunk) and os.path.getsize(chunk) == size

    def _chunk(self, k: int, *names: str) -> str:
        dims = self._array(*names).metadata.dimension_names
        place = ".".join(["c", *(str(k) if dim == "outer_step" else "0" for dim in dims)])
        return os.path.join(self.folder, *names, place)

    def _group(self, store: str, *names: str) -> Any:
        import zarr

        group = zarr.open_group(self.folder / store, mode="r+", zarr_format=3)
        return group["/".join(names)] if names else group

    def _array(self, *names: str) -> Any:
        key = "/".join(names)
        if key not in self._arrays:
            self._arrays[key] = self._group(*names[:-1])[names[-1]]
        return self._arrays[key]

    @contextlib.contextmanager
    def _refused_if_damaged(self) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
            raise InputError(
                f"the history of a run in {str(self.folder)!r}",
                f"a damaged one ({what})",
                "Copy the folder again from an intact copy, or begin the run again in another folder.",
            ) from error


def _new_array(group: Any, name: str, dims: Any, shape: Any, dtype: np.dtype) -> None:
    """An array with a chunk for each outer step. Its numbers are NaN, or 0, until they are written."""
    from zarr.codecs import Crc32cCodec

    chunks = tuple(1 if dim in ("chain", "outer_step") else max(size, 1) for dim, size in zip(dims, shape, strict=True))
    group.create_array(
        name, shape=shape, chunks=chunks, dtype=dtype, fill_value=np.nan if dtype.kind == "f" else 0,
        dimension_names=dims, compressors=Crc32cCodec(), chunk_key_encoding={"name": "default", "separator": "."},
    )  # fmt: skip


def _new_coordinate(group: Any, name: str, labels: np.ndarray) -> None:
    dtype = str if labels.dtype.kind in "OUT" else labels.dtype
    coordinate = group.create_array(name, shape=labels.shape, dtype=dtype, dimension_names=(name,))
    coordinate[:] = labels.astype(object) if dtype is str else labels


class StoredParticles(Mapping[str, np.ndarray]):
    """The particles of a row on disk, read when needed."""

    def __init__(self, store: HistoryStore, k: int):
        self._store, self._k = store, k

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._store.sites:
            raise KeyError(name)
        return self._store.particles(name, self._k)

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.sites)

    def __len__(self) -> int:
        return len(self._store.sites)
