"""The README's example runs as it is printed, and its commands are the ones that exist."""

import doctest
import re
from pathlib import Path

from mfpda.cli import _parser
from mfpda.kernels import KERNELS
from mfpda.rules import RULES
from mfpda.starts import STARTS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testfile(str(ROOT / "README.md"), module_relative=False, optionflags=flags)
    assert result.attempted > 10
    assert result.failed == 0


def test_the_run_command_parses_and_names_files_that_exist():
    (command,) = re.findall(r"&& mfpda (run .*)", README)
    options = _parser().parse_args(command.split())
    assert (ROOT / options.file).is_file()


def test_there_is_one_test_command():
    (section,) = re.findall(r"^## Test$(.*?)^## ", README, re.DOTALL | re.MULTILINE)
    (command,) = re.findall(r"^```bash\n(.*?)\n```$", section, re.DOTALL | re.MULTILINE)
    assert command == 'pip install -e ".[test]" && pytest'


def test_the_table_of_plugs_has_every_rule_start_and_kernel_of_our_own():
    named = set(re.findall(r"^\| \w* ?\| `(\w+)` \|", README, re.MULTILINE))
    ours = {name for name in KERNELS if ":" not in name}
    assert {*RULES, *STARTS, *ours} <= named
