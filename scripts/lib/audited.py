"""Judges what pip-audit found: `audited.py FILE SERVICE`, with its JSON.

Exit status: 0 nothing is known against any package; 1 something is; 3 not all of them were looked up. pip-audit itself
skips a package that its database does not have, and takes that for good.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CLEAN, FOUND, NOT_AUDITED = 0, 1, 3


def main(file: str, service: str) -> int:
    """Prints what is known, and returns the exit status."""
    packages = _packages(file)
    known = [(package, each) for package in packages for each in package.get("vulns", ())]
    for package, each in known:
        names = ", ".join([each["id"], *each.get("aliases", ())])
        fixed = ", ".join(each.get("fix_versions", ())) or "no version yet"
        sys.stdout.write(f"{package['name']} {package['version']}: {names}; fixed in {fixed}\n")
    if known:
        return FOUND
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if skipped or not packages:
        sys.stderr.write(f"{service}: {len(skipped) or 'all'} packages could not be looked up\n")
        return NOT_AUDITED
    sys.stdout.write(f"nothing is known against {len(packages)} packages, says {service}\n")
    return CLEAN


def _packages(file: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = json.loads(Path(file).read_text(encoding="utf-8"))["dependencies"]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # It ended before it wrote any.
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
