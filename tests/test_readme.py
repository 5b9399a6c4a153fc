"""The README's example runs as it is printed, and its commands are the ones that exist."""

import doctest
import re
from pathlib import Path

from mfpda.cli import _parser

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


def test_links_and_rooms_exist():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target
    for cell in re.findall(r"^\| (`.*?) \|", README, re.MULTILINE):
        names = re.findall(r"`([\w/]+(?:\.py|/))`", cell)
        for name in names:
            assert (ROOT / name).exists() or (ROOT / "mfpda" / name).exists(), name
