"""Every tutorial runs from top to bottom, and is committed with its outputs."""

from pathlib import Path

import nbclient
import nbformat
import pytest

pytestmark = pytest.mark.optimised

NOTEBOOKS = sorted((Path(__file__).parents[1] / "tutorials").glob("*.ipynb"))


RUNS = [  # a minute each, but for the one that draws what was computed before
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem != "04_the_paper")) for path in NOTEBOOKS
]


@pytest.mark.parametrize("path", RUNS)
@pytest.mark.filterwarnings("ignore")  # the notebook runs in a process of its own; these are its client's
def test_it_runs(path, tmp_path):
    folder = tmp_path / "tutorials"  # a scratch copy of the clone's layout, for what a notebook may write
    folder.mkdir()
    (tmp_path / "models").symlink_to(path.parents[1] / "models")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    client.execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_committed_and_name_no_machine(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.get("name") == "stderr" or output.output_type == "error" for output in outputs)
