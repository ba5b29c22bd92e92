"""Every fenced block of every page is run by a test, or checked as far as it can be.

`tests/support/listing_tests.py` says by which; a new block fails until it is there. `py` is Python that a test runs by
itself, with names that it prepares; `python` is run together with the other blocks of its page.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from fnmatch import fnmatch
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
import sqlglot
import yaml
from typer.main import get_command

from halfmq_cli.commands import app
from support.listing_tests import ALL, EACH, HERE
from support.listings import CHECKOUT, PAGES, SHELLS, Listing, all_listings, commands_of

if TYPE_CHECKING:
    from collections.abc import Iterator

LISTINGS = all_listings()
FILES = r"(benchmarks|deploy|docs|examples|proto|scripts|tests)/"
"""What words of commands begin with that are files of the checkout."""
PASS_ON = {"scripts/test", "scripts/pack-for-spark"}
"""Scripts that give options to pytest and to uv."""
SPARK_SUBMIT = {"--master", "--archives", "--conf", "--deploy-mode", "--files", "--folder", "--topic"}


def of(*languages: str) -> Any:
    found = [listing for listing in LISTINGS if listing.language in languages]
    return pytest.mark.parametrize("listing", found, ids=str)


def run_by(listing: Listing) -> list[str]:
    """What runs it, by both tables."""
    one = [test for first, test in EACH.get(listing.page, {}).items() if listing.first.startswith(first)]
    whole = [
        test
        for (page, languages), test in ALL.items()
        if fnmatch(listing.page, page) and listing.language in languages.split()
    ]
    return one or whole


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_block_is_run_or_checked(page: Any) -> None:
    name = str(page.relative_to(CHECKOUT))
    assert [f"{each}: {each.first}" for each in LISTINGS if each.page == name and not run_by(each)] == []


def test_every_entry_has_a_block_and_a_test() -> None:
    for (page, languages), test in ALL.items():
        for language in languages.split():
            assert any(fnmatch(each.page, page) and each.language == language for each in LISTINGS), (page, language)
        assert_exists(test)
    for page, entries in EACH.items():
        for first, test in entries.items():
            assert any(each.page == page and each.first.startswith(first) for each in LISTINGS), (page, first)
            assert_exists(test)


def test_what_a_page_says_of_output_is_compared() -> None:
    """Where a test runs all of a page, it compares what follows a command, and the one program of a page."""
    for page, languages in ALL:
        if "text" in languages.split():
            found = [each for each in LISTINGS if fnmatch(each.page, page) and each.language in {"text", "json"}]
            assert [str(each) for each in found if not each.is_output] == []
    programs = [each.page for each in LISTINGS if each.language == "python" and "/how-to/" in each.page]
    assert len(set(programs)) == len(programs)


def assert_exists(test: str) -> None:
    file, _, function = test.partition("::")
    assert re.search(rf"^(async )?def {function}\(", (CHECKOUT / "tests" / file).read_text(), re.M), test


@of("python", "py")
def test_python_is_run(listing: Listing) -> None:
    compile(listing.text, str(listing), "exec")
    (test,) = run_by(listing)
    assert not test.startswith(HERE)


@of("json", "toml", "yaml", "sql", "mysql")
def test_data_can_be_read(listing: Listing) -> None:
    match listing.language:
        case "json":
            rest = listing.text.strip()
            while rest:
                _, end = json.JSONDecoder().raw_decode(rest)
                rest = rest[end:].strip()
        case "toml":
            tomllib.loads(listing.text)
        case "yaml":
            assert list(yaml.safe_load_all(listing.text))
        case _:
            assert sqlglot.parse(listing.text.replace("%s", "?"), dialect="mysql")


@of(*SHELLS)
def test_commands_exist_with_their_options(listing: Listing) -> None:
    for words in commands_of(listing.text):
        assert_command(words)


@pytest.mark.parametrize("first", ["*/5 * * * *", "define command", "$ halfmq doctor"])
def test_commands_in_other_files_exist_with_their_options(first: str) -> None:
    (listing,) = [each for each in LISTINGS if each.page == "docs/doctor.md" and each.first.startswith(first)]
    found = re.findall(r"(?<=[ /])halfmq (doctor [^>|\n]*)", listing.text)
    assert found
    for words in found:
        assert_command(["halfmq", *shlex.split(words)])


def assert_command(words: list[str]) -> None:
    program, *arguments = words
    gone = [word for word in words if re.match(FILES, word) and not (CHECKOUT / word).exists()]
    assert gone == [], words
    if program.rpartition("/")[2] == "halfmq":
        assert_halfmq(arguments)
    elif program.startswith("scripts/"):
        text = (CHECKOUT / program).read_text()
        options = [word for word in arguments if word.startswith("--")]
        assert program in PASS_ON or [option for option in options if option not in text] == [], words
    elif program == "pip":
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
        (extras,) = re.findall(r"^halfmq\[(.*)\]$", arguments[1])
        assert set(extras.split(",")) <= set(project["optional-dependencies"])
    elif program == "spark-submit":
        assert {word for word in arguments if word.startswith("--")} <= SPARK_SUBMIT


def assert_halfmq(arguments: list[str]) -> None:
    """The command takes these arguments; nothing is run."""
    command: Any = get_command(app)
    context = command.context_class(command, info_name="halfmq")
    while hasattr(command, "get_command"):
        name, *arguments = arguments
        if name.startswith("-"):
            return  # what the group itself is asked for, such as its help
        command = command.get_command(context, name)
        assert command is not None, name
        context = command.context_class(command, info_name=name, parent=context)
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
    given = {word.partition("=")[0] for word in arguments if re.match(r"--?[a-z]", word)}
    assert given <= known, (context.command_path, given - known)


def test_packages_that_are_drawn_exist() -> None:
    drawn = [each for each in LISTINGS if each.page == "docs/architecture.md" and each.language == "text"]
    assert len(drawn) == 4
    for listing in drawn:
        for name in _drawn_in(listing.text):
            assert find_spec(name) or (CHECKOUT / name).exists(), name


def _drawn_in(text: str) -> Iterator[str]:
    """The modules of a drawing, which are in the package of its first line if that stands alone."""
    outer = "broker" if text.startswith("app ") else ""
    for line in text.splitlines():
        if re.fullmatch(r"[a-z_/]+", line):
            outer = line.replace("/", ".")
        elif not line.startswith("   "):
            names = re.match(r" *((?:[\w./]+(?: +|$)){1,2}?)(?= {2,}|$)", line)
            assert names, line
            for name in names[1].split():
                path = name.removesuffix(".py").replace("/", ".").removeprefix("proto.gen.")
                yield f"{outer}.{path}" if outer else path


def test_the_job_of_kubernetes_runs_a_command_that_exists() -> None:
    (listing,) = [each for each in LISTINGS if each.page == "docs/doctor.md" and each.language == "yaml"]
    pod = yaml.safe_load(listing.text)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    for container in pod["containers"]:
        assert_command(container["command"])


def test_the_image_is_made_of_what_there_is() -> None:
    (listing,) = [each for each in LISTINGS if each.language == "dockerfile"]
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
    assert f"COPY dist/halfmq-{version}-py3-none-any.whl" in listing.text
    steps = re.sub(r"\\\n", " ", listing.text).splitlines()
    assert {step.split()[0] for step in steps if step and not step.startswith("#")} <= {
        "FROM",
        "USER",
        "RUN",
        "ENV",
        "COPY",
    }


def test_the_subscription_on_the_page_of_cdc_is_valid(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from halfmq_connect.cdc.config import read_settings

    (listing,) = [each for each in LISTINGS if each.page == "docs/ways/cdc.md" and each.language == "toml"]
    monkeypatch.setenv("CDC_PASSWORD", "secret")
    (tmp_path / "shop.toml").write_text(listing.text)
    assert read_settings(tmp_path / "shop.toml").name == "shop"
