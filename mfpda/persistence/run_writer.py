"""What a run writes while it advances: its beginning once, its rows one by one, its state when that is due.

``mfpda.persistence.checkpoint`` describes the files. With several processes only the first one writes.
"""

import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mfpda.distributed import agreed, in_first_process, is_writer
from mfpda.errors import Status
from mfpda.persistence import checkpoint as checkpoints
from mfpda.persistence import container, fingerprint, trees
from mfpda.persistence.checkpoint import Checkpoint
from mfpda.persistence.description import attributes_of, describe
from mfpda.persistence.history_store import HistoryStore, appearing_whole
from mfpda.persistence.saved_run import CERTIFIED, INITIAL, PRIOR, SavedRun
from mfpda.problem import Neuron
from mfpda.progress import Progress, Row, datasets


@dataclass
class RunWriter:
    """Writes one run into the folder of its checkpoint."""

    checkpoint: Checkpoint
    name: str  # binds the files of a run together
    store: HistoryStore
    ends: list[int]  # the lengths that the user asked for, one after another
    statistics: Sequence[str]  # numbers that rows may get later
    saved_step: int = 0  # the outer step of the last checkpoint
    saved_at: float = 0.0  # when it was written
    _writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "mfpda checkpoint"))
    _writing: Future[None] | None = None

    @classmethod
    def create(
        cls,
        checkpoint: Checkpoint,
        progress: Progress,
        identity: dict[str, Any],
        steps: Sequence[int],
        ends: list[int],
        statistics: Sequence[str],
    ) -> "RunWriter":
        """A new folder for a run, with the rows that it has. ``steps`` will be recorded."""
        writer = cls(checkpoint, uuid.uuid4().hex, HistoryStore(checkpoint.path, steps), ends, statistics)

        def make():
            with appearing_whole(checkpoint.path) as folder:
                writer.store = HistoryStore(folder, steps)
                for row in progress.rows:
                    writer.row(row, progress.problem.neuron)
                beginning = _beginning(progress, writer.name, identity, checkpoint)
                container.write(folder / checkpoints.BEGINNING, beginning)
                writer.write(progress, Status.INTERRUPTED, folder)
                writer.wait()
            writer.store = HistoryStore(checkpoint.path, steps)

        in_first_process(make)
        return writer

    @classmethod
    def reopen(cls, checkpoint: Checkpoint, saved: SavedRun, ends: list[int], statistics: Sequence[str]) -> "RunWriter":
        """The folder of a run that continues in it."""
        store = saved.store(ends)
        in_first_process(store.lengthen)
        return cls(checkpoint, saved.facts["run"], store, ends, statistics, saved.outer_steps, time.monotonic())

    def row(self, row: Row, neuron: Neuron) -> Row:
        """Write a row. The returned row reads its particles from disk."""
        if not is_writer():
            return self.store.read_later(row)
        more = dict.fromkeys(self.statistics, np.nan)
        described = lambda row: (  # noqa: E731
            datasets.particle_history([row], neuron),
            datasets.outer_stats([row._replace(stats=row.stats | more)]),
        )
        return self.store.write(row, described)

    def stats(self, row: Row) -> None:
        """Write the numbers of a row again."""
        if is_writer():
            self.store.write_stats(row)

    def due(self, t: int) -> bool:
        """Whether to write after step t. All processes must call it, to agree on the time."""
        if self.checkpoint.seconds is None:
            return t % self.checkpoint.every == 0
        return bool(agreed(int(time.monotonic() - self.saved_at >= self.checkpoint.seconds)))

    def write(self, progress: Progress, status: Status, folder: Path | None = None) -> None:
        """Write a checkpoint while the next step is computed. A stream's anchors are written before it."""
        if is_writer():
            size, problem = progress.settings.batch_size or 0, progress.problem
            for batch in range(self.saved_step + 1, progress.t + 1) if progress.is_stream else ():
                places = slice((batch - 1) * size, batch * size)
                y = None if problem.y is None else np.asarray(problem.y[places])
                self.store.write_anchors(batch, np.asarray(problem.x[places]), y)
            self._write((folder or self.checkpoint.path) / checkpoints.CHECKPOINT, progress, status)
        self.saved_step, self.saved_at = progress.t, time.monotonic()

    def best(self, progress: Progress) -> None:
        """Write a state whose certificate has the smallest bound so far. A stream's anchors at that step are lost."""
        if is_writer() and not progress.is_stream:
            self._write(self.checkpoint.path / checkpoints.BEST, progress, Status.INTERRUPTED)

    def _write(self, path: Path, progress: Progress, status: Status) -> None:
        """Write a state in the background, after the one before is written."""
        facts = describe(progress, status) | {"run": self.name, "ends": self.ends}
        judged = progress.certificate
        certified = {} if judged is None else {CERTIFIED: np.asarray(judged.predictions)}
        contents = container.Contents(facts, trees.leaves(progress.state) | certified)
        self.wait()
        self._writing = self._writer.submit(container.write, path, contents)

    def wait(self) -> None:
        """Wait until the last checkpoint is written. If that failed, the error is raised here, once."""
        writing, self._writing = self._writing, None
        if writing:
            writing.result()


def _beginning(progress: Progress, name: str, identity: dict[str, Any], checkpoint: Checkpoint) -> container.Contents:
    """What a run was given, and a few values that identify its model."""
    few, problem, initial = fingerprint.FEW, progress.problem, progress.initial
    arrays = {
        **{INITIAL + site: value for site, value in initial.items()},
        **{PRIOR + site: value for site, value in progress.prior.items() if not np.array_equal(value, initial[site])},
        **fingerprint.values(problem, progress.state.ensemble.theta),
        **{"thetas": progress.state.ensemble.theta[:few], "x": problem.x[:few]},
        **({} if problem.y is None else {"y": problem.y[:few]}),
    }
    facts = {
        "run": name,
        "identity": identity,
        "attributes": attributes_of(progress, Status.INTERRUPTED),
        "origin": dict(checkpoint.origin),
        "begun": progress.t,
        "recorded": [row.outer_step for row in progress.rows],
    }
    return container.Contents(facts, {name: np.asarray(array) for name, array in arrays.items()})
