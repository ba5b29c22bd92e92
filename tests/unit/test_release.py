"""`scripts/release`, in clones of this repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
VERSION = "999.1.0"


class Clone:
    """A clone with the files of this checkout that a release is made by, on main."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run(["git", "clone", "--quiet", "--shared", CHECKOUT, folder], check=True)
        self.git("checkout", "--quiet", "-B", "main")
        for name in ("user.name", "user.email"):
            self.git("config", name, "somebody")
        for file in ("scripts/release", "tests/support/previous_release.py", "pyproject.toml", "CHANGELOG.md"):
            shutil.copy(CHECKOUT / file, folder / file)
            self.git("add", file)
        self.git("commit", "--quiet", "--allow-empty", "--all", "--message", "as it is here")
        self.head = self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def release(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "scripts/release", *arguments]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=120)

    def is_unchanged(self) -> bool:
        same = self.git("rev-parse", "HEAD") == self.head and not self.git("tag", "--list", f"v{VERSION}")
        return same and not (self.folder / "dist").exists()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "clone")


def test_a_release_is_a_commit_a_tag_and_two_packages(clone: Clone) -> None:
    done = clone.release(VERSION, "--tested")
    assert done.returncode == 0, done.stderr
    assert clone.git("status", "--porcelain") == ""
    released = clone.git("rev-parse", f"v{VERSION}^{{commit}}")
    assert clone.git("rev-parse", "HEAD^") == released
    assert clone.git("rev-parse", "HEAD^^") == clone.head
    shown = {name: clone.git("show", f"{released}:{name}") for name in ("pyproject.toml", "CHANGELOG.md")}
    assert f'version = "{VERSION}"' in shown["pyproject.toml"]
    unreleased, section = shown["CHANGELOG.md"].split("## [Unreleased]")[1].split(f"## [{VERSION}] - ")[:2]
    assert unreleased.strip() == ""
    changes = section.split("\n", 1)[1].split("\n## [")[0].strip()
    assert changes in clone.git("for-each-ref", "--format=%(contents)", f"refs/tags/v{VERSION}")
    wheel = clone.folder / "dist" / f"halfmq-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as files:
        assert "broker/console/assets/vendor/versions" in files.namelist()
        assert f"\nVersion: {VERSION}\n" in files.read(f"halfmq-{VERSION}.dist-info/METADATA").decode()
    with tarfile.open(clone.folder / "dist" / f"halfmq-{VERSION}.tar.gz") as files:
        assert f"halfmq-{VERSION}/broker/app.py" in files.getnames()


def test_upgrades_are_tested_from_it_afterwards(clone: Clone) -> None:
    assert clone.release(VERSION, "--tested").returncode == 0
    released = clone.git("rev-parse", f"v{VERSION}^{{commit}}")
    assert f'PREVIOUS = "{released}"' in (clone.folder / "tests/support/previous_release.py").read_text()


def test_a_dry_run_builds_and_changes_nothing(clone: Clone) -> None:
    done = clone.release(VERSION, "--tested", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"would release {VERSION}: halfmq-{VERSION}-py3-none-any.whl, halfmq-{VERSION}.tar.gz" in done.stdout
    assert clone.is_unchanged()


def leave_a_change(clone: Clone) -> None:
    (clone.folder / "new.txt").write_text("new")


def have_the_tag(clone: Clone) -> None:
    clone.git("tag", f"v{VERSION}")
    clone.is_unchanged = lambda: clone.git("rev-parse", "HEAD") == clone.head  # type: ignore[method-assign]


def be_elsewhere(clone: Clone) -> None:
    clone.git("checkout", "--quiet", "-b", "feature")


def have_no_changes(clone: Clone) -> None:
    (clone.folder / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n## [0.0.1] - 2026-01-01\n\n- One.\n")
    clone.git("commit", "--quiet", "--all", "--message", "nothing to tell")
    clone.head = clone.git("rev-parse", "HEAD")


def nothing(clone: Clone) -> None:
    """As it is."""


@pytest.mark.parametrize(
    ("prepare", "arguments", "reason"),
    [
        (nothing, ["1.0", "--tested"], "no version"),
        (nothing, ["01.0.0", "--tested"], "no version"),
        (nothing, ["0.0.1", "--tested"], "pyproject.toml is at"),
        (nothing, [VERSION], "was not tested"),
        (leave_a_change, [VERSION, "--tested"], "not committed"),
        (be_elsewhere, [VERSION, "--tested"], "this is feature"),
        (have_the_tag, [VERSION, "--tested"], "released already"),
        (have_no_changes, [VERSION, "--tested"], "nothing under"),
    ],
)
def test_what_must_not_be_released_is_refused(prepare: object, arguments: list[str], reason: str, clone: Clone) -> None:
    assert callable(prepare)
    prepare(clone)
    done = clone.release(*arguments)
    assert done.returncode == 1
    assert reason in done.stderr
    assert clone.is_unchanged()


def test_what_scripts_test_has_tested_may_be_released(clone: Clone) -> None:
    (clone.folder / ".halfmq").mkdir()
    (clone.folder / ".halfmq" / "tested").write_text(f"{clone.head}\n")
    assert clone.release(VERSION, "--dry-run").returncode == 0
