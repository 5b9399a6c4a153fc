"""From a file or a checkpoint back to a Fit: the model is code, so it is given again and checked to be the run's."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mfpda.errors import InputError, Status
from mfpda.kernels import KERNELS, Kernel
from mfpda.persistence import checkpoint, fingerprint
from mfpda.persistence import files as storage
from mfpda.persistence.history_store import HistoryStore
from mfpda.problem.blocks import Blocks
from mfpda.problem.data import Examples, capacity, check_examples, enlarged
from mfpda.problem.model import Model
from mfpda.progress import history
from mfpda.registry import Registry
from mfpda.results import arviz_data
from mfpda.results.fit import Fit, initial_state
from mfpda.rules import RULES, Rule
from mfpda.sampling import tuning
from mfpda.starts import STARTS, Start


def load(
    path: str | os.PathLike[str],
    model: Model,
    *,
    data: Any = None,
    kernel: Kernel | None = None,
    rule: Rule | None = None,
    start: Start | None = None,
) -> Fit:
    """A saved fit, which predicts, samples and goes on (``fit(..., resume=loaded)``) as the original did.

    ``path`` is a file of ``Fit.save``, or the folder of a checkpoint: then it is the run as it stood there, and its
    ``data`` have to be given again, unless they were a stream. The model is code and is not in the file: give the one
    it was made with. Kernel, rule and start are found by their registered names; give those that are not registered.
    """
    if not isinstance(model, Model):
        raise InputError("the Model of the run", repr(model), "Call load(path, model).")
    if not Path(path).is_dir():
        return _from_file(path, model, kernel, rule, start)
    kept = Kept.read(path)
    if kept.is_stream:
        examples = kept.anchors
        if examples is None:
            raise InputError("a stream of at least one outer step", "none", "Begin the run anew.")
    elif data is None:
        advice = "A checkpoint does not hold them: mfpda.load(folder, model, data=(x, y))."
        raise InputError("the data of the run", "none", advice)
    else:
        examples = check_examples(model, *data)
        same = {"data": checkpoint.data_digest(*examples[:2])}
        checkpoint.check_same({"data": kept.identity["data"]}, same, kept.folder)
        examples = examples._replace(blocks=kept.blocks.over(len(examples.x)))
    return kept.fit(model, examples, *_plugs(kept.facts, kernel, rule, start))


class Kept(NamedTuple):
    """The folder of a checkpoint, read."""

    folder: Path
    beginning: checkpoint.Contents
    standing: checkpoint.Contents

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> "Kept":
        path = Path(folder)
        if path.is_file():
            advice = "Load a saved fit with mfpda.load(path, model)."
            raise InputError("a Fit to resume, or the folder of a checkpoint", f"the file {str(folder)!r}", advice)
        if not path.is_dir():
            advice = "A run makes it when it begins: fit(..., checkpoint=folder). Until then nothing was done."
            raise InputError("the folder of a checkpoint", f"no folder at {str(folder)!r}", advice)
        kept = cls(path, *(checkpoint.read(path / name) for name in (checkpoint.BEGINNING, checkpoint.CHECKPOINT)))
        if kept.beginning.facts["run"] != kept.standing.facts["run"]:
            advice = "Copy the folder whole."
            raise InputError(
                f"one run in {str(folder)!r}", "the beginning of one and the checkpoint of another", advice
            )
        return kept

    @property
    def facts(self) -> dict[str, Any]:
        return self.standing.facts

    @property
    def identity(self) -> dict[str, Any]:
        """What the run was given, and the same run has to be given again."""
        return self.beginning.facts["identity"]

    @property
    def settings(self) -> dict[str, Any]:
        """What ``fit`` was asked for, and the rows of its blocks."""
        return json.loads(self.beginning.facts["attributes"]["settings"])

    @property
    def blocks(self) -> Blocks:
        return Blocks(self.settings["block_rows"])

    @property
    def outer_steps(self) -> int:
        return int(self.facts["outer_steps"])

    @property
    def is_stream(self) -> bool:
        return bool(self.facts["is_stream"])

    @property
    def anchors(self) -> Examples | None:
        """The buffer of a stream as it was, or None before its first step."""
        if not (self.is_stream and self.outer_steps):
            return None
        x, y = self.store().anchors(self.outer_steps)
        size = capacity(self.outer_steps, int(self.facts["batch_size"]))
        examples = Examples(jnp.asarray(x), None if y is None else jnp.asarray(y), self.blocks.over(size))
        return enlarged(examples, size)

    @property
    def ends(self) -> list[int]:
        """The lengths that were asked for, one after another."""
        return self.facts["ends"]

    def store(self, ends: Sequence[int] | None = None) -> HistoryStore:
        """What it has recorded, and what it will if it becomes so long."""
        begun, recorded = self.beginning.facts["begun"], self.beginning.facts["recorded"]
        every, certify_every = self.identity["record"]["every"], self.identity["certify_every"]
        planned = history.recorded_steps(every, certify_every, ends or self.ends, after=begun)
        return HistoryStore(self.folder, [*recorded, *planned])

    def check_model(self, model: Model) -> None:
        """Refuse a model other than the run's."""
        arrays = {name: jnp.asarray(array) for name, array in self.beginning.arrays.items()}
        x = arrays["x"]
        fingerprint.check_names(model, jax.ShapeDtypeStruct(x.shape[1:], x.dtype), self.facts)
        names = fingerprint.VALUES
        few = Examples(x, arrays.get("y"))
        fingerprint.check_values(model, arrays["thetas"], few, {name: arrays[name] for name in names})

    def fit(self, model: Model, examples: Examples, kernel: Kernel, rule: Rule, start: Start) -> Fit:
        """The run as it stood."""
        self.check_model(model)
        facts, initial = self.facts, {}
        for place, array in self.beginning.arrays.items():
            if place.startswith(INITIAL):
                initial[place.removeprefix(INITIAL)] = array
        batch_size = int(facts["batch_size"]) or None
        template = _state(model, examples, batch_size, kernel, rule, int(facts["particles"]))
        state = storage.rebuilt(self.standing.arrays, template)
        store = self.store()
        attributes = self.beginning.facts["attributes"] | {"status": facts["status"]}
        rows = tuple(store.rows(self.outer_steps))
        return _fit(facts, model, kernel, rule, start, examples, state, initial, rows, attributes, store)


INITIAL = "initial: "  # before the name of a site, in the beginning of a checkpoint


def _from_file(path, model, kernel, rule, start) -> Fit:
    tree = storage.read(path)
    if storage.RUN_STATE not in tree.children:
        raise InputError("a file of one saved fit", "several runs stacked as chains", "Read it with arviz.from_netcdf.")
    groups = arviz_data.groups_of(tree)
    packed = groups.pop(storage.RUN_STATE)
    stored = packed.attrs
    kernel, rule, start = _plugs(stored, kernel, rule, start)
    x = groups["constant_data"]["x"].values
    y = groups["observed_data"]["y"].values if "observed_data" in groups else None
    fingerprint.check_names(model, jax.ShapeDtypeStruct(x.shape[1:], x.dtype), stored)
    is_stream, batch_size = bool(stored["is_stream"]), int(stored["batch_size"]) or None
    blocks = Blocks(json.loads(tree.attrs["settings"]).get("block_rows"))
    examples = Examples(jnp.asarray(x), None if y is None else jnp.asarray(y), blocks.over(len(x)))
    particles = groups["posterior"].sizes["draw"]
    template = _template(model, examples, packed, is_stream, batch_size, kernel, rule, particles)
    extra = storage.unpack(packed, template)
    if is_stream:
        x, y = extra["buffer"]
        examples = Examples(x, y, blocks.over(len(x)))
    fingerprint.check_values(model, extra["state"].ensemble.theta, examples, extra["fingerprint"])
    initial = {str(name): groups["prior"][name].values[0] for name in groups["prior"]}
    rows = tuple(history.rows_from(groups["particle_history"], groups["outer_stats"]))
    attributes = {str(name): value for name, value in tree.attrs.items()}
    return _fit(stored, model, kernel, rule, start, examples, extra["state"], initial, rows, attributes)


def _fit(
    facts: Mapping[Any, Any], model, kernel, rule, start, examples, state, initial, rows, attributes, store=None
) -> Fit:
    return Fit(
        model=model,
        rule=rule,
        kernel=kernel,
        start=start,
        examples=examples,
        is_stream=bool(facts["is_stream"]),
        batch_size=int(facts["batch_size"]) or None,
        outer_steps=int(facts["outer_steps"]),
        inner_steps=int(facts["inner_steps"]),
        state=state,
        initial=initial,
        rows=rows,
        status=Status(facts["status"]),
        attributes=attributes,
        store=store,
    )


def _plugs(facts: Mapping[Any, Any], kernel: Any, rule: Any, start: Any) -> tuple[Kernel, Rule, Start]:
    plugs = json.loads(facts["plugs"])
    return (
        _rebuilt(KERNELS, plugs["kernel"], kernel),
        _rebuilt(RULES, plugs["rule"], rule),
        _rebuilt(STARTS, plugs["start"], start),
    )


def _rebuilt(registry: Registry, description: dict[str, Any], given: Any) -> Any:
    plug = registry.rebuilt(description) if given is None else registry.resolve(given)
    if registry.name_of(plug) != description["name"]:
        found, advice = registry.name_of(plug), f"Pass the {registry.kind} it was made with, or none."
        raise InputError(f"the {registry.kind} of the run, {description['name']}", found, advice)
    return tuning.plan(plug, 1)[0] if registry is KERNELS else plug


def _template(model, examples, packed, is_stream, batch_size, kernel, rule, particles) -> Any:
    """The shapes of what was packed, worked out from the model and the plugs."""
    buffer: tuple[Any, ...] = ()
    if is_stream:
        leaves = [leaf for leaf in packed.data_vars.values() if leaf.attrs["place"].startswith("['buffer']")]
        buffer = tuple(jax.ShapeDtypeStruct(leaf.shape, jnp.result_type(leaf.dtype)) for leaf in leaves)
        examples = Examples(*(buffer + (None,) * (2 - len(buffer))))
        buffer = examples[:2]
    state = _state(model, examples, batch_size, kernel, rule, particles)
    values = jax.eval_shape(fingerprint.values, model, state.ensemble.theta, examples)
    return {"state": state, "fingerprint": values} | {"buffer": buffer}


def _state(model, examples, batch_size, kernel, rule, particles) -> Any:
    """The shapes of a run's state."""
    batch = None if batch_size is None else jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    shapes = lambda key, examples, batch: initial_state(key, model, examples, batch, kernel, rule, particles)  # noqa: E731
    return jax.eval_shape(shapes, jax.random.key(0), examples, batch)
