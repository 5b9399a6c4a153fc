"""A subclass of a plug is frozen data and a pytree by itself, and a registry finds, describes and rebuilds plugs."""

import dataclasses
import json
from dataclasses import field
from functools import partial
from typing import ClassVar

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import infer

import mfpda
from mfpda import InputError, starts
from mfpda.kernels import KERNELS
from mfpda.registry import Plug, Registry, pytree
from mfpda.rules import RULES
from mfpda.starts import STARTS

pytestmark = pytest.mark.quick


class Tool(Plug):
    kind: ClassVar[str] = "tool"


class Hammer(Tool):
    weight: float = 2.0
    grip: str = field(default="wood", metadata={"static": True})
    heads: ClassVar[int] = 1
    loud = True


class Mallet(Tool):
    """The same fields as a hammer's."""

    weight: float = 2.0
    grip: str = field(default="wood", metadata={"static": True})


class Heavy(Hammer):
    """A subclass of a plug is one, with more fields."""

    length: float = 1.0


class Borrowed(Tool):
    """A tool of another library."""

    name: str = field(default="", metadata={"static": True})
    weight: float = 1.0

    @property
    def settings_by_name(self):
        return {"weight": self.weight}


class Box(Plug):
    kind: ClassVar[str] = "box"
    tool: Tool = Hammer()
    size: int = 3


TOOLS = Registry(
    Tool,
    {"hammer": Hammer, "mallet": Mallet, "blackjax:saw": partial(Borrowed, "blackjax:saw")},
    families={"blackjax": lambda name, **settings: Borrowed(f"blackjax:{name}", **settings)},
    also=("by_hand",),
)
BOXES = Registry(Box, {"box": Box}, parts={"tool": TOOLS})


def test_a_subclass_is_a_frozen_dataclass():
    assert [each.name for each in dataclasses.fields(Hammer)] == ["weight", "grip"]
    assert [each.name for each in dataclasses.fields(Heavy)] == ["weight", "grip", "length"]
    assert repr(Heavy(length=3.0)) == "Heavy(weight=2.0, grip='wood', length=3.0)"
    assert Hammer(3.0) == Hammer(weight=3.0) != Hammer()
    assert Hammer() != Mallet()
    assert len({Hammer(), Hammer(), Hammer(3.0)}) == 2
    assert dataclasses.replace(Hammer(), weight=3.0) == Hammer(3.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Hammer().weight = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        Tool().weight = 1.0


def test_a_subclass_is_a_pytree_whose_static_fields_are_structure():
    assert jax.tree.leaves(Heavy()) == [2.0, 1.0]
    doubled = jax.tree.map(lambda leaf: 2 * leaf, Heavy(grip="steel"))
    assert doubled == Heavy(4.0, "steel", 2.0)
    assert jax.tree.structure(Hammer(1.0)) == jax.tree.structure(Hammer(5.0))
    assert jax.tree.structure(Hammer(grip="steel")) != jax.tree.structure(Hammer())
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(Heavy())] == [
        ".weight", ".length",
    ]  # fmt: skip
    assert jax.tree.leaves(Box()) == [2.0, 3]  # a plug in a plug


def test_a_number_may_be_anything_where_jax_puts_it_together():
    """JAX builds pytrees of shapes, of None and of objects: no check of a user's numbers runs there."""

    class Picky(Tool):
        weight: float = 1.0

        def __post_init__(self):
            if not isinstance(self.weight, float):
                raise TypeError

    with pytest.raises(TypeError):
        Picky(weight="heavy")
    strange = object()
    assert jax.tree.map(lambda leaf: strange, Picky()).weight is strange
    assert jax.eval_shape(lambda tool: tool, Picky()).weight.shape == ()


def test_numbers_change_without_compiling_again_and_static_fields_do_not():
    weight = jax.jit(lambda tool: tool.weight * len(tool.grip))
    assert [float(weight(Hammer(each))) for each in (1.0, 2.0)] == [4.0, 8.0]
    assert weight._cache_size() == 1
    assert float(weight(Hammer(1.0, "steel"))) == 5.0
    assert weight._cache_size() == 2


def test_two_classes_with_equal_fields_have_structures_of_their_own():
    """Also where hashes collide: JAX compares structures then."""
    assert jax.tree.structure(Hammer()) != jax.tree.structure(Mallet())
    kind = jax.jit(lambda tool: 1.0 if isinstance(tool, Hammer) else 2.0)
    assert (float(kind(Hammer())), float(kind(Mallet()))) == (1.0, 2.0)
    for table in (KERNELS, RULES, STARTS):
        structures = [jax.tree.structure(make()) for make in table.values()]
        assert len(set(structures)) == len(structures)


def test_a_plain_dataclass_can_be_a_pytree_too():
    @pytree
    @dataclasses.dataclass(frozen=True)
    class Pair:
        number: float
        word: str = field(metadata={"static": True})

    assert jax.tree.leaves(Pair(1.0, "a")) == [1.0]
    assert jax.tree.map(lambda leaf: leaf + 1, Pair(1.0, "a")) == Pair(2.0, "a")


def test_settings_by_name():
    assert Heavy(length=3.0).settings_by_name == {"weight": 2.0, "grip": "wood", "length": 3.0}
    assert Tool().settings_by_name == {}


def test_a_name_or_a_plug_is_resolved():
    hammer = Hammer(3.0)
    assert TOOLS.resolve(hammer) is hammer
    assert TOOLS.resolve("mallet") == Mallet()
    assert TOOLS.resolve(Heavy()) == Heavy()  # not registered, but a subclass
    assert TOOLS.resolve("blackjax:saw") == Borrowed("blackjax:saw")
    assert TOOLS.resolve("blackjax:drill") == Borrowed("blackjax:drill")  # known to its family alone


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Hammer, r"a tool object, found the class Hammer\. Call it: Hammer\(\)\."),
        (print, r"a tool, found <built-in function print>\. Use one of 'hammer', 'mallet'.*a subclass of mfpda\.Tool"),
        (None, "a tool, found None"),
        (3, "a tool, found 3"),
        (int, "a tool, found the class int"),
        (Box(), r"a tool, found Box\("),
        (Box, "a tool, found the class Box"),
        (mfpda.ULA(), r"a tool, found ULA\("),
        (blackjax.hmc, "a tool object, found a GenerateSamplingAPI of blackjax itself"),
        ("", r"the name of a tool \('hammer', 'mallet', 'blackjax:saw', 'by_hand'\), found ''"),
        ("Hammer", "found 'Hammer'. Did you mean 'hammer'"),
        ("hamer", "found 'hamer'. Did you mean 'hammer'"),
        ("saw", "found 'saw'. Did you mean 'blackjax:saw'"),
        ("SAW", "found 'SAW'. Did you mean 'blackjax:saw'"),
        ("by_hands", "found 'by_hands'. Did you mean 'by_hand'"),
        ("xyz", "found 'xyz'. Give one of these, or a tool object."),
        ("numpyro:saw", "found 'numpyro:saw'. Give one of these, or a tool object."),
        ("blackjax:", "found 'blackjax:'"),
    ],
)
def test_what_is_not_a_tool_is_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        TOOLS.resolve(wrong)


@pytest.mark.parametrize(
    ("table", "wrong", "message"),
    [
        (KERNELS, mfpda.ULA, r"a kernel object, found the class ULA\. Call it: ULA\(\)\."),
        (KERNELS, mfpda.Warm(), r"a kernel, found Warm\(\)\. Use one of 'ula'.*a subclass of mfpda\.Kernel"),
        (KERNELS, infer.NUTS, r"a kernel object, found the class NUTS of numpyro itself\. Wrap it: mfpda\.FromNumPyro"),
        (KERNELS, print, "a kernel, found <built-in function print>"),
        (RULES, "ula", "the name of a rule"),
        (RULES, mfpda.ULA(), r"a rule, found ULA\(.*a subclass of mfpda\.Rule"),
        (RULES, mfpda.Latest, r"Call it: Latest\(\)\."),
        (STARTS, mfpda.Latest(), r"a start, found Latest\(.*a subclass of mfpda\.Start"),
        (STARTS, lambda key, thetas, old, new: thetas, "a start, found <function"),
        (STARTS, starts.move, "a start, found <function move"),
    ],
)
def test_the_tables_of_the_library_refuse_other_kinds(table, wrong, message):
    with pytest.raises(InputError, match=message):
        table.resolve(wrong)


def test_names_of_plugs():
    assert TOOLS.name_of(Hammer(3.0)) == "hammer"
    assert TOOLS.name_of(Heavy()) == "Heavy"  # under no name of its own
    for table in (KERNELS, RULES, STARTS):
        assert [table.name_of(table.resolve(name)) for name in table] == list(table)
    assert KERNELS.name_of(mfpda.FromBlackJAX("dynamic_hmc")) == "blackjax:dynamic_hmc"
    assert [TOOLS.knows(name) for name in ("hammer", "blackjax:drill", "by_hand", "Heavy")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("table", "plug"),
    [
        (TOOLS, Hammer(3.0, "steel")),
        (BOXES, Box(Mallet(0.5), 4)),
        (KERNELS, mfpda.ULA()),
        (KERNELS, mfpda.MALA(step_size=0.3)),
        (KERNELS, mfpda.Underdamped(friction=2.0, integrator="frozen_force")),
        (KERNELS, mfpda.StochasticGradient(anchors=7)),
        (KERNELS, mfpda.FromBlackJAX("hmc", num_integration_steps=7)),
        (KERNELS, mfpda.FromNumPyro("NUTS", step_size=0.2)),
        (STARTS, mfpda.Warm()),
        (STARTS, mfpda.Temper(kernel=mfpda.FromBlackJAX("hmc", num_integration_steps=2), moves=3, share=0.4)),
        *((RULES, make()) for make in RULES.values()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_plug_is_rebuilt_from_its_description(table, plug):
    """Through JSON, as a file keeps it."""
    described = table.describe(plug)
    assert described["name"] == table.name_of(plug)
    again = table.rebuild(json.loads(json.dumps(described)))
    assert type(again) is type(plug)
    assert repr(again) == repr(plug)
    assert jax.tree.structure(again) == jax.tree.structure(plug)


def test_numbers_of_jax_and_arrays_are_kept_as_numbers():
    described = TOOLS.describe(Hammer(jnp.asarray(1.5)))
    assert described == {"name": "hammer", "settings": {"weight": 1.5, "grip": "wood"}}
    described = KERNELS.describe(mfpda.FromBlackJAX("hmc", inverse_mass_matrix=np.array([1.0, 2.0])))
    rebuilt = KERNELS.rebuild(json.loads(json.dumps(described)))
    np.testing.assert_array_equal(rebuilt.settings["inverse_mass_matrix"], [1.0, 2.0])


@pytest.mark.parametrize(
    ("table", "plug", "message"),
    [
        (TOOLS, Heavy(), r"a registered tool \('hammer', .*found a run made with Heavy\..*load\(path, model, tool="),
        (TOOLS, Hammer(lambda t: t), "found a run made with hammer and a 'weight' that is your own code"),
        (BOXES, Box(Heavy()), "found a run made with box and a 'tool' that is your own code"),
    ],
    ids=["class", "setting", "part"],
)
def test_what_was_not_saved_is_asked_for(table, plug, message):
    described = json.loads(json.dumps(table.describe(plug)))
    with pytest.raises(InputError, match=message):
        table.rebuild(described)


def test_a_new_name_is_a_new_entry(monkeypatch):
    monkeypatch.setitem(TOOLS, "heavy", Heavy)
    assert TOOLS.resolve("heavy") == Heavy()
    assert TOOLS.rebuild(TOOLS.describe(Heavy(length=4.0))) == Heavy(length=4.0)


def test_an_option_of_the_class_is_no_field():
    with pytest.raises(InputError, match=r"loud as an option of the class Sledge, found a field.*without a type"):

        class Sledge(Hammer):
            loud: bool = False


def test_a_plug_may_have_other_base_classes():
    class Painted:
        colour = "red"

    class First(Painted, Hammer):
        pass

    class Last(Hammer, Painted):
        pass

    assert (First(3.0).colour, Last(3.0).weight) == ("red", 3.0)
