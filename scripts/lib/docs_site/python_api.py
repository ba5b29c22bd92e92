"""Reference pages of the SDKs: every public name, from the code and its Google docstrings, without importing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import griffe

from docs_site.docstrings import loaded, sections
from docs_site.prose import cell, code, prose, table

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES = (
    "producer_sdk",
    "producer_sdk.fence",
    "producer_sdk.outbox",
    "producer_sdk.testing",
    "consumer_sdk",
    "consumer_sdk.applied",
    "consumer_sdk.reconciliation",
    "consumer_sdk.spark",
    "consumer_sdk.testing",
    "halfmq_connect.reconciliation",
    "halfmq_connect.kafka",
)
"""The modules that applications import from. What client_core has is re-exported by both SDKs, and has one page."""
SHARED = "client_core"
Kind = griffe.DocstringSectionKind


def pages() -> dict[str, str]:
    """The pages, by their place on the site."""
    modules = loaded(dict.fromkeys((SHARED, *(module.partition(".")[0] for module in MODULES))))
    shared: dict[str, griffe.Object] = {}
    made = {}
    for name in MODULES:
        module = modules[name]
        made[f"reference/python/{name}.md"] = "\n".join(_module(module, shared))
    lines = ["# Names that both SDKs have", "", "Import them from `producer_sdk` or from `consumer_sdk`.", ""]
    for name in sorted(shared):
        lines += _described(shared[name], name, 2)
    made["reference/python/shared.md"] = "\n".join(lines)
    index = [
        "# Python",
        "",
        "Made from the code. [Producers and consumers in Python](../../sdk.md) shows how to use it.",
        "",
    ]
    index += [f"* [{name}]({name}.md): {_summary(modules[name])}" for name in MODULES]
    index += [
        "* [Names that both SDKs have](shared.md)",
        "",
        "```{toctree}",
        ":hidden:",
        ":titlesonly:",
        "",
        *MODULES,
        "shared",
        "```",
        "",
    ]
    return {**made, "reference/python/index.md": "\n".join(index)}


def _module(module: griffe.Object, shared: dict[str, griffe.Object]) -> Iterator[str]:
    yield from [f"# {module.path}", "", *_docstring(module)]
    elsewhere = []
    for name in sorted(map(str, module.exports or ())):
        member = _target(module.members[name])
        if member is None:
            continue
        if member.path.startswith(f"{SHARED}.") and not module.path.startswith(SHARED):
            shared[name] = member
            elsewhere.append(f"[`{name}`](shared.md#{name.lower()})")
        else:
            yield from _described(member, name, 2)
    if elsewhere:
        yield from ["## Also to be imported from here", "", ", ".join(elsewhere), ""]


def _target(member: griffe.Object | griffe.Alias) -> griffe.Object | None:
    """What a name stands for; None: nothing of this checkout."""
    try:
        return member.final_target if isinstance(member, griffe.Alias) else member
    except griffe.AliasResolutionError:
        return None


def _described(member: griffe.Object, name: str, level: int) -> Iterator[str]:
    yield from [f"{'#' * level} {name}", ""]
    if isinstance(member, griffe.Class):
        yield from _class(member, name, level)
    elif isinstance(member, griffe.Function):
        yield from [*_signature(member, name), *_docstring(member)]
    else:
        value = getattr(member, "value", None)
        yield from ["```python", f"{name} = {value}", "```", "", *_docstring(member)]


def _class(member: griffe.Class, name: str, level: int) -> Iterator[str]:
    members = {key: each for key in member.all_members if (each := _target(member.all_members[key])) is not None}
    made = members.get("__init__")
    if isinstance(made, griffe.Function) and not made.path.startswith("builtins"):
        yield from _signature(made, name)
    bases = [str(base) for base in member.bases]
    if bases:
        yield from [f"Bases: {', '.join(code(base) for base in bases)}.", ""]
    yield from _docstring(member)
    if isinstance(made, griffe.Function):
        yield from _docstring(made)
    values = [[code(key), cell(_text(each))] for key, each in members.items() if _is_value(key, each, member)]
    yield table(["value", "meaning"], values)
    for key, each in members.items():
        if key.startswith("_"):
            continue
        if isinstance(each, griffe.Function):
            yield from [f"{'#' * (level + 1)} {name}.{key}", "", *_signature(each, key), *_docstring(each)]
        elif "property" in each.labels:
            kind = f" ({code(str(each.annotation))})" if getattr(each, "annotation", None) else ""  # type: ignore[attr-defined]
            yield from [f"{'#' * (level + 1)} {name}.{key}", "", f"Property{kind}.", "", *_docstring(each)]


def _is_value(key: str, member: griffe.Object, owner: griffe.Class) -> bool:
    """Whether this is a value of an enum, or an attribute with a text of its own; fields are told in the docstring."""
    if key.startswith("_") or not isinstance(member, griffe.Attribute) or "property" in member.labels:
        return False
    return any("Enum" in str(base) for base in owner.bases) or member.docstring is not None


def _signature(function: griffe.Function, name: str) -> list[str]:
    parts, star = [], False
    for parameter in function.parameters:
        if parameter.name in {"self", "cls"}:
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not star:
            parts.append("*")
        star = star or parameter.kind in {griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional}
        mark = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(
            parameter.kind, ""
        )
        part = f"{mark}{parameter.name}" + (f": {parameter.annotation}" if parameter.annotation else "")
        parts.append(part + (f" = {parameter.default}" if parameter.default is not None and not mark else ""))
    returns = "" if function.name == "__init__" or not function.returns else f" -> {function.returns}"
    before = "async " if "async" in function.labels else ""
    whole = f"{before}{name}({', '.join(parts)}){returns}"
    if len(whole) > 100:
        whole = f"{before}{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"
    return ["```python", whole, "```", ""]


def _docstring(member: griffe.Object) -> Iterator[str]:
    for section in sections(member.docstring):
        if section.kind is Kind.text:
            yield from [prose(section.value), ""]
        elif section.kind in {Kind.parameters, Kind.attributes, Kind.other_parameters}:
            heading = "argument" if section.kind is Kind.parameters else "attribute"
            yield table([heading, "meaning"], [[_names(each.name), cell(each.description)] for each in section.value])
        elif section.kind is Kind.raises:
            rows = [[code(str(each.annotation)), cell(each.description)] for each in section.value]
            yield table(["raises", "when"], rows)
        elif section.kind in {Kind.returns, Kind.yields}:
            word = "Returns" if section.kind is Kind.returns else "Yields"
            yield from [f"**{word}:** " + " ".join(prose(each.description) for each in section.value), ""]
        elif section.kind is Kind.examples:
            yield from ["```python", *(text for _, text in section.value), "```", ""]
        elif section.kind is Kind.admonition:
            yield from [f"**{section.title}** {prose(section.value.description)}", ""]


def _names(text: str) -> str:
    return ", ".join(code(name) for name in text.split(","))


def _summary(member: griffe.Object) -> str:
    return cell(_text(member).partition("\n\n")[0])


def _text(member: griffe.Object) -> str:
    return member.docstring.value if member.docstring else ""
