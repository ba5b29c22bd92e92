"""`scripts/audit --sbom`: a bill of materials that names what halfmq stands on."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def direct() -> set[str]:
    """What pyproject.toml names, as PyPI writes it."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    return {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", each)[0]).lower() for each in named}


def test_the_bill_of_materials_names_every_direct_dependency() -> None:
    done = subprocess.run(
        [CHECKOUT / "scripts/audit", "--sbom"], capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr
    written = (CHECKOUT / "build/sbom.json").read_text()
    assert str(CHECKOUT) not in written
    bill = json.loads(written)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert "serialNumber" not in bill
    assert "timestamp" not in bill["metadata"]
    own = bill["metadata"]["component"]
    assert (own["name"], own["licenses"][0]["license"]["id"]) == ("halfmq", "Apache-2.0")
    by_reference = {each["bom-ref"]: each for each in bill["components"]}
    for each in bill["components"]:
        name = re.sub(r"[-_.]+", "-", each["name"]).lower()
        assert each["purl"] == f"pkg:pypi/{name}@{each['version']}"
    (depends,) = (each["dependsOn"] for each in bill["dependencies"] if each["ref"] == own["bom-ref"])
    names = {re.sub(r"[-_.]+", "-", by_reference[each]["name"]).lower() for each in depends}
    assert names == direct()
    # What those stand on is there, too.
    assert len(by_reference) > len(names)
    assert not {"pytest", "ruff", "mypy"} & {each["name"] for each in bill["components"]}
