"""Builds the site: python -m docs_site FOLDER puts the pages into FOLDER/pages, and the site into FOLDER/site."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx.cmd.build import main as sphinx

from docs_site import command, metrics, navigation, protocol, python_api, settings
from docs_site.docstrings import Complaints
from docs_site.pages import CHECKOUT, MOVED, Links, is_image, page_of, page_with, place_of
from docs_site.states import as_table

if TYPE_CHECKING:
    from collections.abc import Iterable

_FETCHED = re.compile(r"""<(script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']((?:https?:)?//[^"']*)""")


def gathered() -> dict[str, str | bytes]:
    """All pages and images, by their place on the site."""
    links = Links()
    files = [*MOVED, *(str(file.relative_to(CHECKOUT)) for file in sorted((CHECKOUT / "docs").rglob("*.md")))]
    pages: dict[str, str] = {
        str(page_of(file)): as_table(links.rewritten((CHECKOUT / file).read_text(encoding="utf-8"), file))
        for file in dict.fromkeys(files)
    }
    for made in (command, metrics, protocol, python_api, settings):
        pages |= made.pages()
    pages = navigation.added(pages)
    return pages | {
        place_of(file): (CHECKOUT / file).read_bytes() if is_image(file) else page_with(file)
        for file in sorted(links.needed)
    }


def write(pages: dict[str, str | bytes], folder: Path) -> None:
    """Writes what changed, so that Sphinx reads no page again without need; removes what is gone."""
    for file in folder.rglob("*.*"):
        if file.is_file() and str(file.relative_to(folder)) not in pages:
            file.unlink()
    for name, content in pages.items():
        file = folder / name
        data = content.encode() if isinstance(content, str) else content
        if not file.exists() or file.read_bytes() != data:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


def foreign(site: Path) -> list[str]:
    """What pages of the site would fetch from other hosts."""
    return [
        f"{page} fetches {found[2]}" for page in site.rglob("*.html") for found in _FETCHED.finditer(page.read_text())
    ]


def not_searched(site: Path, pages: Iterable[str]) -> list[str]:
    """Pages that the site's search does not know; and a word that it must find, where that is."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    wanted = {page.removesuffix(".md") for page in pages if page.endswith(".md")}
    found = [f"the search does not know {page}" for page in sorted(wanted - set(index["docnames"]))]
    told_in: set[int] = set()
    for words in (index["terms"], index["titleterms"]):
        numbers = words.get("park", [])
        told_in.update(numbers if isinstance(numbers, list) else [numbers])
    if "operations" not in {index["docnames"][number] for number in told_in}:
        found.append("the search does not find parked transactions in operations.md")
    return found


def main(folder: Path) -> int:
    """Builds it; the exit status."""
    complaints = Complaints()
    pages = gathered()
    write(pages, folder / "pages")
    site = folder / "site"
    shutil.rmtree(site, ignore_errors=True)
    options = ["-b", "html", "-q", "-W", "--keep-going", "-c", str(Path(__file__).parent), "-d", str(folder / "read")]
    code = sphinx([*options, str(folder / "pages"), str(site)])
    found = complaints.found + foreign(site) + not_searched(site, pages)
    sys.stderr.writelines(f"scripts/docs: {each}\n" for each in found)
    return code or bool(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
