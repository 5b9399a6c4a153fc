"""Files of facts and arrays: what was written is read, and whatever differs from it in a bit is refused."""

import os

import numpy as np
import pytest

from mfpda import InputError
from mfpda.persistence import container
from mfpda.persistence.container import Contents

pytestmark = pytest.mark.quick

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128", ">f4", ">i8",
]  # fmt: skip
SHAPES = [(), (0,), (1,), (7,), (0, 3), (3, 0), (2, 3), (1, 1, 1), (2, 3, 4)]


def there_and_back(path, arrays, facts=None):
    container.write(path, Contents(facts or {}, arrays))
    return container.read(path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_type_and_shape_comes_back(tmp_path, dtype, shape):
    array = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    found = there_and_back(tmp_path / "file", {"a": array}).arrays["a"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)


def test_bits_of_special_numbers_come_back(tmp_path):
    array = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 5e-324, np.finfo(float).max])
    assert there_and_back(tmp_path / "file", {"a": array}).arrays["a"].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12).reshape(3, 4).T,
        np.arange(12)[::3],
        np.arange(12)[::-1],
        np.broadcast_to(np.float32(2), (3, 2)),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    ],
    ids=["transposed", "every third", "backwards", "broadcast", "fortran"],
)
def test_arrays_that_are_not_contiguous_come_back(tmp_path, array):
    np.testing.assert_array_equal(there_and_back(tmp_path / "file", {"a": array}).arrays["a"], array)


def test_facts_and_names_come_back_in_their_order(tmp_path):
    facts = {"text": "η → θ", "numbers": [1, 2.5, None, True], "nested": {"a": {"b": []}}, "tiny": 1e-300}
    arrays = {".ensemble.theta": np.ones(2), "['a'][0]": np.zeros(()), "η": np.arange(3)}
    found = there_and_back(tmp_path / "file", arrays, facts)
    assert found.facts == facts
    assert list(found.facts) == list(facts)
    assert list(found.arrays) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)


def test_a_file_without_arrays(tmp_path):
    assert there_and_back(tmp_path / "file", {}, {"a": 1}) == Contents({"a": 1}, {})


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    container.write(path, Contents({"version": 1}, {"a": np.ones(3)}))
    container.write(path, Contents({"version": 2}, {"a": np.ones(5)}))
    assert container.read(path).facts == {"version": 2}

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        container.write(path, Contents({"version": 3}, {"a": np.ones(7)}))
    assert container.read(path).facts == {"version": 2}
    assert os.listdir(tmp_path) == ["file"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a small file: two arrays, one of them empty."""
    path = tmp_path_factory.mktemp("container") / "file"
    arrays = {"theta": np.arange(6, dtype=np.float32).reshape(2, 3), "none": np.empty((0, 2)), "t": np.int32(7)}
    container.write(path, Contents({"t": 3, "name": "run"}, arrays))
    return path.read_bytes()


def refused(path, content, match):
    path.write_bytes(content)
    with pytest.raises(InputError, match=match):
        container.read(path)


def test_every_flipped_byte_is_refused(whole, tmp_path):
    """Every bit of every byte by itself, and every byte with all its bits."""
    for place in range(len(whole)):
        for mask in (*(1 << bit for bit in range(8)), 0xFF):
            spoilt = bytearray(whole)
            spoilt[place] ^= mask
            refused(tmp_path / "file", bytes(spoilt), "a bit has changed since, or the file is cut short")


def test_every_shorter_file_is_refused(whole, tmp_path):
    for length in range(len(whole)):
        refused(tmp_path / "file", whole[:length], "a bit has changed since, or the file is cut short")


@pytest.mark.parametrize("more", [b"\0", b"\n", b"more", bytes(1000)])
def test_a_longer_file_is_refused(whole, tmp_path, more):
    refused(tmp_path / "file", whole + more, "another end in its file 'file'")


def test_the_message_says_which_part_differs(whole, tmp_path):
    theta = np.arange(6, dtype=np.float32).tobytes()
    assert whole.count(theta) == 1
    refused(tmp_path / "file", whole.replace(theta, theta[:-1] + b"\1"), "another theta in its file 'file'")
    refused(tmp_path / "file", b"M" + whole[1:], "another magic number in its file 'file'")
    refused(tmp_path / "file", whole.replace(b'"name": "run"', b'"name": "ran"'), "another header in its file 'file'")


def test_two_swapped_arrays_are_refused(tmp_path):
    first, second = np.arange(3.0), np.arange(3.0) + 10
    container.write(tmp_path / "file", Contents({}, {"a": first, "b": second}))
    content = (tmp_path / "file").read_bytes()
    head = content[: -len(first.tobytes()) - len(second.tobytes())]
    assert head + first.tobytes() + second.tobytes() == content
    refused(tmp_path / "file", head + second.tobytes() + first.tobytes(), "another a in its file")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="the folder of a checkpoint, found no file in"):
        container.read(tmp_path / "file")
