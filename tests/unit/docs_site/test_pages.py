"""Pages of the checkout on the site: where their links lead, and what the navigation has."""

from __future__ import annotations

import re

import pytest

from docs_site import command, metrics, navigation, protocol, python_api, settings
from docs_site.pages import CHECKOUT, Links, page_with
from docs_site.prose import cell, prose
from docs_site.states import as_table


@pytest.mark.parametrize(
    ("file", "link", "on_the_site"),
    [
        ("docs/sdk.md", "ways/fence.md#rows", "ways/fence.md#rows"),
        ("docs/ways/fence.md", "../how-to/README.md", "../how-to/index.md"),
        ("docs/sdk.md", "../README.md", "project/readme.md"),
        ("README.md", "docs/sdk.md", "../sdk.md"),
        ("README.md", "docs/decisions", "../decisions/index.md"),
        ("docs/ways/fence.md", "../../examples/producer.py", "../files/examples/producer.py.md"),
        ("docs/how-to/README.md", "../../examples/how_to", "../files/examples/how_to.md"),
        ("README.md", "docs/images/console-overview.png", "../images/console-overview.png"),
        ("docs/sdk.md", "#messages", "#messages"),
        ("docs/sdk.md", "https://www.w3.org/TR/trace-context/", "https://www.w3.org/TR/trace-context/"),
        ("docs/sdk.md", "gone.md", "gone.md"),
    ],
)
def test_a_link_leads_to_the_page_of_its_file(file: str, link: str, on_the_site: str) -> None:
    assert Links().rewritten(f"See [it]({link}).", file) == f"See [it]({on_the_site})."


def test_a_file_that_is_linked_to_gets_a_page_with_its_text() -> None:
    links = Links()
    links.rewritten("[a](../examples/producer.py)", "docs/sdk.md")
    assert links.needed == {"examples/producer.py"}
    assert (CHECKOUT / "examples" / "producer.py").read_text().rstrip() in page_with("examples/producer.py")


def test_a_listing_stays_as_it_is() -> None:
    text = "```text\n[no link](../README.md)\n```\n"
    assert Links().rewritten(text, "docs/sdk.md") == text


def test_the_navigation_has_four_kinds_and_what_the_code_makes() -> None:
    text = (CHECKOUT / "docs" / "README.md").read_text()
    made = dict.fromkeys(navigation.MADE, "# made\n")
    pages = {navigation.INDEX: text, "how-to/index.md": "[a](a.md)", "ways/index.md": "[b](b.md)", **made}
    index = navigation.added(pages)[navigation.INDEX]
    assert re.findall(r"^:caption: (.+)$", index, re.M) == ["Tutorial", "How-to", "Reference", "Explanation"]
    for page in navigation.MADE:
        assert f"made <{page}>" in index


def test_text_of_the_code_is_no_markup() -> None:
    assert prose("A *list*_ of <b> and ``code_`` with `x_y`.") == "A \\*list\\*\\_ of \\<b> and `code_` with `x_y`."
    assert (
        prose("Like this::\n\n    a = 1\n    b = 2\n\nand on") == "Like this:\n\n```python\na = 1\nb = 2\n```\n\nand on"
    )
    assert cell("two\nlines | bar") == "two lines \\| bar"


def test_the_diagram_of_states_is_a_table() -> None:
    page = (CHECKOUT / "docs" / "architecture.md").read_text()
    shown = as_table(page)
    assert "mermaid" not in shown
    assert "| the beginning | prepare | `PREPARED` |" in shown
    assert "| `PARKED` | operator commit | `COMMITTED` |" in shown


def test_every_call_and_field_of_the_protocol_has_its_comment() -> None:
    pages = protocol.pages()
    for file in (CHECKOUT / "proto" / "halfmq" / "v1").glob("*.proto"):
        page = pages[f"reference/protocol/{file.stem}.md"]
        text = file.read_text()
        for name in re.findall(r"^(?:message|enum|service) (\w+)", text, re.M):
            assert f"\n## {name}\n" in page
        for call in re.findall(r"^ +rpc (\w+)", text, re.M):
            assert f"\n### {call}\n" in page
            assert f"[`{call}`]({file.stem}.md#{call.lower()})" in pages["reference/protocol/index.md"]
        bare = re.findall(r"^\| (`\w+`) \|.*\|  \|$", page, re.M)
        assert bare == [], f"{file.name}: without a comment"


def test_every_command_has_its_options() -> None:
    pages = command.pages()
    assert "`--check-interval <float>`" in pages["reference/command/serve.md"]
    assert "## halfmq access grant" in pages["reference/command/access.md"]
    assert "(pipeline.md)" in pages["reference/command/index.md"]


def test_every_setting_has_its_names_bounds_and_needs() -> None:
    (page,) = settings.pages().values()
    (row,) = re.findall(r"^\| `check_interval` .*$", page, re.M)
    assert [part.strip() for part in row.strip("| ").split("|")] == [
        "`check_interval`",
        "`--check-interval`, `HALFMQ_CHECK_INTERVAL`",
        "`30`",
        "0.01 to 86,400",
        "seconds between checks.",
    ]
    (row,) = re.findall(r"^\| `jwt_keys` .*$", page, re.M)
    assert "with `access`, `jwt_audience`" in row


def test_the_metrics_are_those_of_the_page_that_brokers_are_compared_with() -> None:
    before, _, behind = (CHECKOUT / "docs" / "metrics.md").read_text().partition("## Relays, cdc, bridges")
    for heading, part in zip(metrics.SOURCES, (before, behind.partition("\n## ")[0]), strict=True):
        shown = set(re.findall(r"^\| `((?:halfmq|rocketmq)_\w+)` \|", part, re.M))
        assert {name for name, *_ in metrics.found_in(heading)} == shown
    assert ("halfmq_bridge_system_up", "gauge", "`bridge`, `direction`, `system`") in {
        found[:3] for found in metrics.found_in("Relays, cdc, bridges")
    }


def test_public_names_are_told_with_signatures_and_errors() -> None:
    pages = python_api.pages()
    page = pages["reference/python/producer_sdk.md"]
    assert "\n## TransactionProducer\n" in page
    assert "| `DuplicateKey` | A half message without a verdict has the `dedup_key`. |" in page
    assert "[`Message`](shared.md#message)" in page
    assert "\n## Message\n" in pages["reference/python/shared.md"]
