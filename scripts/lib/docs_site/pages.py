"""Pages of the checkout as pages of the site, and what their relative links become.

The pages in docs/ are written for a code host, too: their links name files of the checkout. On the site a link to
another page leads to that page, and a link to any other file to a page with the text of the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

CHECKOUT = Path(__file__).resolve().parents[3]
INDEX = "docs/README.md"
MOVED = {
    INDEX: "index.md",
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "benchmarks/rocketmq/README.md": "project/rocketmq-benchmark.md",
}
"""Where pages are on the site, by their place in the checkout; those in docs/ keep theirs."""
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml", ".proto": "protobuf"}
"""How the files that pages link to are highlighted."""

_LISTING = re.compile(r"^( *)(`{3,}).*?^\1\2 *$", re.S | re.M)
_LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))|(?<=<img src=\")[^\"]+(?=\")")


def page_of(file: str) -> str | None:
    """Where a page of the checkout is on the site; None: it is no page of it."""
    if file in MOVED:
        return MOVED[file]
    if file.startswith("docs/") and file.endswith(".md"):
        page = file.removeprefix("docs/")
        return page.replace("README.md", "index.md")
    return None


def place_of(file: str) -> str:
    """Where on the site a file or folder that is no page is: an image as it is, of others the text on a page."""
    return f"images/{PurePosixPath(file).name}" if is_image(file) else f"files/{file}.md"


def is_image(file: str) -> bool:
    """Whether it is shown as a picture."""
    return PurePosixPath(file).suffix in {".png", ".svg"}


class Links:
    """Rewrites the links of pages, and keeps what they need.

    Attributes:
        needed: files and folders of the checkout that pages link to, each of which needs a page of its own.
    """

    def __init__(self) -> None:
        """Knows of none yet."""
        self.needed: set[str] = set()

    def rewritten(self, text: str, file: str) -> str:
        """The text of a page of the checkout, with links for the site; listings stay as they are."""
        parts, end = [], 0
        for listing in _LISTING.finditer(text):
            parts += [self._in_prose(text[end : listing.start()], file), listing[0]]
            end = listing.end()
        return "".join([*parts, self._in_prose(text[end:], file)])

    def _in_prose(self, text: str, file: str) -> str:
        return _LINK.sub(lambda link: self._target(link[0], file), text)

    def _target(self, link: str, file: str) -> str:
        path, hash_, anchor = link.partition("#")
        if not path or ":" in path:
            return link
        named = os.path.normpath(PurePosixPath(file).parent / path)
        if (CHECKOUT / named).is_dir():
            named = self._of_folder(named)
        page = page_of(named)
        if page is None:
            if not (CHECKOUT / named).exists():
                return link  # Sphinx says that it leads nowhere
            self.needed.add(named)
            page = place_of(named)
        return os.path.relpath(page, PurePosixPath(page_of(file) or file).parent) + hash_ + anchor

    @staticmethod
    def _of_folder(folder: str) -> str:
        if folder == "docs/decisions":
            return "docs/decisions/README.md"
        page = f"{folder}/README.md"
        return page if (CHECKOUT / page).is_file() else folder


def page_with(file: str) -> str:
    """A page with the text of a file, or with the names of what is in a folder."""
    path = CHECKOUT / file
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir() if each.suffix in LANGUAGES)
        content = "\n".join(f"* `{name}`" for name in names)
    else:
        language = LANGUAGES.get(path.suffix, "text")
        content = f"````{language}\n{path.read_text(encoding='utf-8').rstrip()}\n````"
    return f"---\norphan: true\n---\n# {file}\n\n{content}\n"


def title_of(text: str) -> str:
    """The first heading of a page."""
    return re.search(r"^# (.+)$", text, re.M)[1]  # type: ignore[index]
