"""The navigation of the site: the list in docs/README.md under its four kinds, and the pages that the code makes."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from docs_site.pages import title_of

INDEX = "index.md"
MADE = {
    "reference/settings.md": "every setting of a broker, from its code",
    "reference/metrics.md": "every metric, with its type and labels",
    "reference/protocol/index.md": "every service, call, message and field",
    "reference/command/index.md": "every command and option",
    "reference/python/index.md": "every public name of the SDKs",
}
"""Pages made from the code, which docs/README.md cannot link to; they follow the others under Reference."""
FOLDERS = ("how-to", "ways")
"""Folders whose page lists the others in it."""
_ENTRY = re.compile(r"^\* \[([^\]]*)\]\(([^)#]+)", re.M)
_DECISIONS = "decisions/index.md"


def added(pages: dict[str, str]) -> dict[str, str]:
    """The pages with their navigation, and with the list of decisions."""
    made = {_DECISIONS: _decisions(pages)}
    for folder in FOLDERS:
        index = f"{folder}/index.md"
        children = re.findall(r"\]\(([\w-]+\.md)\)", pages[index])
        made[index] = pages[index] + _hidden([child for child in dict.fromkeys(children) if child != "index.md"])
    made[INDEX] = _index(pages[INDEX], pages | made)
    return pages | made


def _index(page: str, pages: dict[str, str]) -> str:
    before, *kinds = re.split(r"^## (.+)\n", page, flags=re.M)
    made = "".join(f"* [{title_of(pages[name])}]({name}): {told}\n" for name, told in MADE.items())
    text, trees = before, ""
    for kind, listed in zip(kinds[::2], kinds[1::2], strict=True):
        content = f"{listed.rstrip()}\n{made if kind == 'Reference' else ''}\n"
        text += f"## {kind}\n{content}"
        trees += _hidden([f"{name} <{page}>" for name, page in _ENTRY.findall(content)], kind)
    return text + trees


def _decisions(pages: dict[str, str]) -> str:
    names = sorted(name for name in pages if name.startswith("decisions/"))
    lines = [f"* [{title_of(pages[name])}]({PurePosixPath(name).name})" for name in names]
    text = "# Decisions\n\nDesign decisions, with the measurements behind them.\n\n" + "\n".join(lines) + "\n"
    return text + _hidden([PurePosixPath(name).name for name in names])


def _hidden(names: list[str], caption: str = "") -> str:
    lines = [
        "",
        "```{toctree}",
        ":hidden:",
        ":titlesonly:",
        *([f":caption: {caption}"] if caption else []),
        "",
        *names,
        "```",
        "",
    ]
    return "\n".join(lines)
