"""Tables for notebooks: well-formed, plain, and escaped."""

import pytest

from mfpda.core import html_table
from tests.helpers import cells

pytestmark = pytest.mark.quick


def test_every_fact_has_a_row_in_its_order():
    facts = {"status": "finished", "gap": "0.1 +- 0.2", "next": "Take more outer_steps."}
    assert cells(html_table("Fit", facts)) == ("Fit", facts)


def test_text_is_escaped():
    facts = {"<b>label</b>": "<script>alert('x')</script> & \"y\""}
    page = html_table("<i>", facts)
    assert "<script>" not in page
    assert "<b>" not in page
    assert cells(page) == ("<i>", facts)


def test_nothing_comes_from_elsewhere():
    page = html_table("Fit", {"status": "finished"})
    assert not any(word in page for word in ("http", "<link", "<script", "<style", "class="))
