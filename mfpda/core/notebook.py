"""How results look in a notebook: a plain HTML table, without styles or scripts from elsewhere."""

import html
from collections.abc import Mapping

LEFT = "text-align: left; vertical-align: top"  # notebooks align cells to the right


def html_table(title: str, facts: Mapping[str, str]) -> str:
    """Return a table with one row per fact, a label and a text. All text is escaped.

    >>> html_table("Fit", {"gap": "< 0.1"}).count("&lt; 0.1")
    1
    """
    rows = "".join(
        f'<tr><th scope="row" style="{LEFT}">{html.escape(label)}</th><td style="{LEFT}">{html.escape(text)}</td></tr>'
        for label, text in facts.items()
    )
    return f'<table><caption style="{LEFT}">{html.escape(title)}</caption><tbody>{rows}</tbody></table>'
