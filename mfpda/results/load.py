"""From a file or a checkpoint back to a fit. The model is code, so it is given again and checked."""

import os
from pathlib import Path
from typing import Any

from mfpda.errors import InputError
from mfpda.kernels import Kernel
from mfpda.persistence import SavedRun, checkpoint, files, rebuild_plugs, saved_fit
from mfpda.problem import Model, Problem, bind
from mfpda.results.fit import Fit
from mfpda.rules import Rule
from mfpda.starts import Start


def load(
    path: str | os.PathLike[str],
    model: Model,
    *,
    data: Any = None,
    kernel: Kernel | None = None,
    rule: Rule | None = None,
    start: Start | None = None,
) -> Fit:
    """A saved fit, which predicts, samples and can be resumed (``fit(..., resume=loaded)``) as the original can.

    ``path`` is a file of ``Fit.save``, or the folder of a checkpoint. A folder needs its ``data`` again, unless they
    were a stream. The model is code and is not in the file: give the one that the run was made with. Kernel, rule and
    start are found by their registered names. Give those that are not registered.
    """
    if not isinstance(model, Model):
        raise InputError("the Model of the run", repr(model), "Call load(path, model).")
    if not Path(path).is_dir():
        return Fit(*saved_fit.read(files.read(path), model, kernel, rule, start))
    saved = SavedRun.read(path)
    plugs = rebuild_plugs(saved.returned.facts, kernel, rule, start)
    return Fit(saved.progress(_problem(saved, model, data), plugs, saved.returned), saved.status, saved.store())


def _problem(saved: SavedRun, model: Model, data: Any) -> Problem:
    """The problem of a saved run: a stream's own anchors, or the data that the user gives again."""
    if saved.is_stream:
        buffer = saved.stream_buffer(model)
        if buffer is None:
            raise InputError("a stream of at least one outer step", "none", "Begin the run again.")
        return buffer
    if data is None:
        advice = "A checkpoint does not hold them: mfpda.load(folder, model, data=(x, y))."
        raise InputError("the data of the run", "none", advice)
    problem = bind(model, *data)
    same = {"data": checkpoint.data_digest(problem.x, problem.y)}
    checkpoint.check_same({"data": saved.identity["data"]}, same, saved.folder)
    return problem.in_blocks(saved.blocks)
