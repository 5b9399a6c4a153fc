"""What a run keeps on disk while it goes on: its beginning once, its rows one by one, where it stands when that is due.

See ``mfpda.checkpoint`` for the files. Of several processes the first alone writes; the others know where things lie.
"""

import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mfpda.distributed.mesh import agreed, in_first_process, is_writer
from mfpda.persistence import checkpoint as checkpoints
from mfpda.persistence import files as storage
from mfpda.persistence import fingerprint
from mfpda.persistence.checkpoint import Checkpoint
from mfpda.persistence.history_store import HistoryStore, appearing_whole
from mfpda.problem.model import Model
from mfpda.progress import history
from mfpda.progress.history import Row
from mfpda.results.fit import Fit
from mfpda.results.loading import INITIAL, Kept


@dataclass
class Keeper:
    """The folder of one run."""

    checkpoint: Checkpoint
    name: str  # binds the files of a run together
    store: HistoryStore
    ends: list[int]  # the lengths that were asked for, one after another
    statistics: Sequence[str]  # numbers that rows may get later
    kept: int = 0  # the outer step of the last checkpoint
    written: float = 0.0  # when that was written
    _writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "mfpda checkpoint"))
    _writing: Future[None] | None = None

    @classmethod
    def begun(
        cls,
        checkpoint: Checkpoint,
        fit: Fit,
        identity: dict[str, Any],
        steps: Sequence[int],
        ends: list[int],
        statistics: Sequence[str],
    ) -> "Keeper":
        """A new folder for a run that stands where this fit does, with the rows it has; ``steps`` will be recorded."""
        keeper = cls(checkpoint, uuid.uuid4().hex, HistoryStore(checkpoint.path, steps), ends, statistics)

        def make():
            with appearing_whole(checkpoint.path) as folder:
                keeper.store = HistoryStore(folder, steps)
                for row in fit.rows:
                    keeper.row(row, fit.model, fit.examples.x)
                checkpoints.write(folder / checkpoints.BEGINNING, _beginning(fit, keeper.name, identity, checkpoint))
                keeper.write(fit, folder)
                keeper.wait()
            keeper.store = HistoryStore(checkpoint.path, steps)

        in_first_process(make)
        return keeper

    @classmethod
    def gone_on(cls, checkpoint: Checkpoint, kept: Kept, ends: list[int], statistics: Sequence[str]) -> "Keeper":
        """The folder of a run that goes on in it."""
        keeper = cls(
            checkpoint, kept.facts["run"], kept.store(ends), ends, statistics, kept.outer_steps, time.monotonic()
        )
        in_first_process(keeper.store.lengthen)
        return keeper

    def row(self, row: Row, model: Model, x: Any) -> Row:
        """Write a row of a run of this model on these inputs; what is given back reads its particles from disk."""
        if not is_writer():
            return self.store.read_later(row)
        more = dict.fromkeys(self.statistics, np.nan)
        described = lambda row: (  # noqa: E731
            history.particle_history([row], model, model.structure(x[0])),
            history.outer_stats([row._replace(stats=row.stats | more)]),
        )
        return self.store.write(row, described)

    def stats(self, row: Row) -> None:
        """Write the numbers of a row that is there again."""
        if is_writer():
            self.store.write_stats(row)

    def due(self, t: int) -> bool:
        """Whether to write after step t. All processes must ask: their clocks differ."""
        if self.checkpoint.seconds is None:
            return t % self.checkpoint.every == 0
        return bool(agreed(int(time.monotonic() - self.written >= self.checkpoint.seconds)))

    def write(self, fit: Fit, folder: Path | None = None) -> None:
        """Where the run stands, while the next step is computed. The anchors of a stream go before what needs them."""
        if is_writer():
            size = fit.batch_size or 0
            for batch in range(self.kept + 1, fit.outer_steps + 1) if fit.is_stream else ():
                places = slice((batch - 1) * size, batch * size)
                y = None if fit.examples.y is None else np.asarray(fit.examples.y[places])
                self.store.write_anchors(batch, np.asarray(fit.examples.x[places]), y)
            facts = fit.described | {"run": self.name, "ends": self.ends}
            contents = checkpoints.Contents(facts, storage.leaves(fit.state))
            self.wait()
            path = (folder or self.checkpoint.path) / checkpoints.CHECKPOINT
            self._writing = self._writer.submit(checkpoints.write, path, contents)
        self.kept, self.written = fit.outer_steps, time.monotonic()

    def wait(self) -> None:
        """Until the last checkpoint is written. If that failed it is raised here, once."""
        writing, self._writing = self._writing, None
        if writing:
            writing.result()


def _beginning(fit: Fit, name: str, identity: dict[str, Any], checkpoint: Checkpoint) -> checkpoints.Contents:
    """What a run was given, and a few values by which its model is known again."""
    few, (x, y, _) = fingerprint.FEW, fit.examples
    arrays = {
        **{INITIAL + name: value for name, value in fit.initial.items()},
        **fingerprint.values(fit.model, fit.thetas, fit.examples),
        **{"thetas": fit.thetas[:few], "x": x[:few]},
        **({} if y is None else {"y": y[:few]}),
    }
    facts = {
        "run": name,
        "identity": identity,
        "attributes": fit.attributes,
        "origin": dict(checkpoint.origin),
        "begun": fit.outer_steps,
        "recorded": [row.outer_step for row in fit.rows],
    }
    return checkpoints.Contents(facts, {name: np.asarray(array) for name, array in arrays.items()})
