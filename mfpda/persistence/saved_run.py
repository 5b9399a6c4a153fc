"""A run read back from the folder of its checkpoint."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from mfpda.errors import InputError, Status
from mfpda.persistence import checkpoint, container, fingerprint, trees
from mfpda.persistence.description import Plugs, restore, settings_of, state_shapes
from mfpda.persistence.history_store import HistoryStore
from mfpda.problem import Blocks, Model, Problem, capacity, enlarged
from mfpda.progress import Progress, Settings, recorded_steps

# Before the name of a site, in the beginning of a checkpoint. Draws of the prior are left out if they are the first
# particles.
INITIAL, PRIOR = "initial: ", "prior: "
CERTIFIED = "certified predictions"  # beside the state in a checkpoint, if that state was certified


class SavedRun(NamedTuple):
    """The contents of a checkpoint's folder."""

    folder: Path
    beginning: container.Contents
    latest: container.Contents
    best: container.Contents | None = None  # an earlier state, whose certificate has the smallest bound

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> "SavedRun":
        path = Path(folder)
        if path.is_file():
            advice = "Load a saved fit with mfpda.load(path, model)."
            raise InputError("a Fit to resume, or the folder of a checkpoint", f"the file {str(folder)!r}", advice)
        if not path.is_dir():
            advice = "fit(..., checkpoint=folder) makes it at the start. Without it there is nothing to resume."
            raise InputError("the folder of a checkpoint", f"no folder at {str(folder)!r}", advice)
        saved = cls(path, *(container.read(path / name) for name in (checkpoint.BEGINNING, checkpoint.CHECKPOINT)))
        if saved.beginning.facts["run"] != saved.latest.facts["run"]:
            advice = "Copy the whole folder."
            raise InputError(
                f"one run in {str(folder)!r}", "the beginning of one and the checkpoint of another", advice
            )
        if not (path / checkpoint.BEST).is_file():
            return saved
        best = container.read(path / checkpoint.BEST)
        later = best.facts["outer_steps"] > saved.outer_steps  # than the checkpoint: the run makes it again
        return saved if later or best.facts["run"] != saved.facts["run"] else saved._replace(best=best)

    @property
    def returned(self) -> container.Contents:
        """The state that ``fit`` returned, or would return if the run ended here."""
        return self.best if self.status.returns_best and self.best else self.latest

    @property
    def facts(self) -> dict[str, Any]:
        return self.latest.facts

    @property
    def identity(self) -> dict[str, Any]:
        """What the run was given, and must be given again to be the same run."""
        return self.beginning.facts["identity"]

    @property
    def origin(self) -> dict[str, Any]:
        """What a command needs to make the same call of ``fit`` again."""
        return self.beginning.facts["origin"]

    @property
    def settings(self) -> Settings:
        return settings_of(self.beginning.facts["attributes"])

    @property
    def blocks(self) -> Blocks:
        return Blocks(self.settings.block_rows)

    @property
    def status(self) -> Status:
        return Status(self.facts["status"])

    @property
    def outer_steps(self) -> int:
        return int(self.facts["outer_steps"])

    @property
    def is_stream(self) -> bool:
        return bool(self.facts["is_stream"])

    @property
    def ends(self) -> list[int]:
        """The run's length in each call of ``fit``, in order."""
        return self.facts["ends"]

    def stream_buffer(self, model: Model) -> Problem | None:
        """The buffer of a stream as it was, or None before its first step."""
        if not (self.is_stream and self.outer_steps):
            return None
        x, y = self.store().anchors(self.outer_steps)
        size = capacity(self.outer_steps, int(self.facts["batch_size"]))
        problem = enlarged(Problem.of(model, jnp.asarray(x), None if y is None else jnp.asarray(y)), size)
        return problem.in_blocks(self.blocks)

    def store(self, ends: Sequence[int] | None = None) -> HistoryStore:
        """The recorded rows, with room for a run with these ``ends``."""
        begun, recorded = self.beginning.facts["begun"], self.beginning.facts["recorded"]
        every, certify_every = self.identity["record"]["every"], self.identity["certify_every"]
        planned = recorded_steps(every, certify_every, ends or self.ends, after=begun)
        return HistoryStore(self.folder, [*recorded, *planned])

    def check_model(self, model: Model) -> None:
        """Refuse a model other than the run's."""
        arrays = {name: jnp.asarray(array) for name, array in self.beginning.arrays.items()}
        few = Problem.of(model, arrays["x"], arrays.get("y"))
        fingerprint.check_names(few, self.facts)
        fingerprint.check_values(few, arrays["thetas"], {name: arrays[name] for name in fingerprint.VALUES})

    def progress(self, problem: Problem, plugs: Plugs, contents: container.Contents | None = None) -> Progress:
        """The run as it was when the checkpoint was written, or at another state of it."""
        self.check_model(problem.model)
        kernel, rule, _ = plugs
        facts, found = contents or self.latest
        arrays = dict(found)
        certified = arrays.pop(CERTIFIED, None)
        state = trees.rebuild(arrays, state_shapes(problem, facts, kernel, rule))
        initial = self._sites(INITIAL)
        prior = initial | self._sites(PRIOR)
        rows = self.store().rows(int(facts["outer_steps"]))
        attributes = self.beginning.facts["attributes"]
        return restore(facts, attributes, problem, plugs, state, initial, prior, rows, certified)

    def _sites(self, kind: str) -> dict[str, np.ndarray]:
        arrays = self.beginning.arrays.items()
        return {name.removeprefix(kind): value for name, value in arrays if name.startswith(kind)}
