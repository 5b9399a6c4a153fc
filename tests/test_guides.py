"""The guides' code runs as printed, their links lead somewhere, and the README stays short."""

import doctest
import re
from pathlib import Path
from unittest.mock import patch

import pytest

from mfpda.kernels import KERNELS
from mfpda.rules import RULES
from mfpda.starts import STARTS

ROOT = Path(__file__).parents[1]
GUIDES = sorted((ROOT / "tutorials" / "guides").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "models" / "paper" / "README.md", *GUIDES]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MOST_WORDS = 800  # of the README, code aside


def without_code(text: str) -> str:
    """The text outside fenced code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def headings(page: Path) -> set[str]:
    """The names by which links find the headings of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_the_code_of_a_guide_runs_as_printed(guide, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with patch.dict(KERNELS), patch.dict(RULES), patch.dict(STARTS):  # a guide may register plugs
        result = doctest.testfile(str(guide), module_relative=False, optionflags=FLAGS)
    assert result.attempted > 5
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_exist(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"\w+:", link):  # another site's
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not heading or heading in headings(target), f"{page.name} links to {link}"


def test_the_readme_is_short():
    words = [word for word in without_code((ROOT / "README.md").read_text()).split() if re.search(r"\w", word)]
    assert len(words) <= MOST_WORDS
