"""Reference pages of the protocol: each service, call, message, field and value of proto/halfmq/v1, commented."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc  # type: ignore[import-untyped]

from docs_site.pages import CHECKOUT
from docs_site.prose import cell, code, prose, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, ServiceDescriptorProto

Part = TypeVar("Part")
Path_ = tuple[int, ...]
_MESSAGE, _ENUM, _SERVICE, _METHOD, _FIELD, _NESTED, _NESTED_ENUM, _VALUE = 4, 5, 6, 2, 2, 3, 4, 2
"""The numbers of fields in descriptors, of which the paths of comments are made."""
_PACKAGE = ".halfmq.v1."


def pages() -> dict[str, str]:
    """The pages, by their place on the site."""
    files = [each for each in _descriptors().file if each.package == "halfmq.v1"]
    where = {name: _stem(file) for file in files for name in _names(file)}
    made = {f"reference/protocol/{_stem(file)}.md": _File(file, where).page() for file in files}
    lines = [
        "# Calls and messages",
        "",
        "Made from `proto/halfmq/v1`; read [how to use them](../../protocol.md) first.",
        "",
    ]
    for file in files:
        comment = _Comments(file)
        for path, service in _numbered((_SERVICE,), file.service):
            rows = [
                [f"[`{call.name}`]({_stem(file)}.md#{call.name.lower()})", cell(_first_sentence(comment(place)))]
                for place, call in _numbered((*path, _METHOD), service.method)
            ]
            lines += [f"## {service.name}", "", table(["call", "what it does"], rows)]
    lines += ["```{toctree}", ":hidden:", ":titlesonly:", "", *sorted(_stem(file) for file in files), "```", ""]
    return {**made, "reference/protocol/index.md": "\n".join(lines)}


def _descriptors() -> FileDescriptorSet:
    folder = CHECKOUT / "proto"
    with tempfile.NamedTemporaryFile(suffix=".pb") as out:
        files = [str(file.relative_to(folder)) for file in sorted((folder / "halfmq" / "v1").glob("*.proto"))]
        included = Path(protoc.__file__).parent / "_proto"
        arguments = [f"--proto_path={folder}", f"--proto_path={included}", f"--descriptor_set_out={out.name}"]
        if protoc.main(["protoc", *arguments, "--include_source_info", *files]):
            raise SystemExit("proto/halfmq/v1 cannot be read: see above")
        return FileDescriptorSet.FromString(Path(out.name).read_bytes())


class _Comments:
    """What is written before, or behind, each part of a file."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._by_path = {
            tuple(each.path): (each.leading_comments or each.trailing_comments).strip()
            for each in file.source_code_info.location
        }

    def __call__(self, path: Path_) -> str:
        lines = self._by_path.get(path, "").splitlines()
        return "\n".join(line.removeprefix(" ") for line in lines)


class _File:
    """The page of a file."""

    def __init__(self, file: FileDescriptorProto, where: dict[str, str]) -> None:
        self._file, self._where, self._comment = file, where, _Comments(file)
        self._lines: list[str] = []

    def page(self) -> str:
        file = self._file
        self._lines = [f"# {_stem(file)}.proto", "", f"Package `{file.package}`, file `{file.name}`.", ""]
        for path, service in _numbered((_SERVICE,), file.service):
            self._service(path, service)
        for path, message in _numbered((_MESSAGE,), file.message_type):
            self._message(path, message, "")
        for path, enum in _numbered((_ENUM,), file.enum_type):
            self._enum(path, enum, "")
        return "\n".join(self._lines)

    def _service(self, path: Path_, service: ServiceDescriptorProto) -> None:
        self._lines += [f"## {service.name}", "", prose(self._comment(path)), ""]
        for place, call in _numbered((*path, _METHOD), service.method):
            takes = ("a stream of " if call.client_streaming else "") + self._type(call.input_type)
            gives = ("a stream of " if call.server_streaming else "") + self._type(call.output_type)
            comment = prose(self._comment(place))
            self._lines += [f"### {call.name}", "", comment, "", f"Takes {takes}, answers with {gives}.", ""]

    def _message(self, path: Path_, message: DescriptorProto, outer: str) -> None:
        if message.options.map_entry:
            return
        name = f"{outer}{message.name}"
        self._lines += [f"## {name}", "", prose(self._comment(path)), ""]
        rows = []
        for place, field in _numbered((*path, _FIELD), message.field):
            told = cell(self._comment(place))
            if field.HasField("oneof_index") and not field.proto3_optional:
                told = f"One of `{message.oneof_decl[field.oneof_index].name}`. {told}"
            rows.append([code(field.name), self._kind(message, field), str(field.number), told])
        self._lines += [table(["field", "type", "number", "meaning"], rows)]
        for place, nested in _numbered((*path, _NESTED), message.nested_type):
            self._message(place, nested, f"{name}.")
        for place, enum in _numbered((*path, _NESTED_ENUM), message.enum_type):
            self._enum(place, enum, f"{name}.")

    def _enum(self, path: Path_, enum: EnumDescriptorProto, outer: str) -> None:
        rows = [
            [code(value.name), str(value.number), cell(self._comment(place))]
            for place, value in _numbered((*path, _VALUE), enum.value)
        ]
        self._lines += [f"## {outer}{enum.name}", "", prose(self._comment(path)), ""]
        self._lines += [table(["value", "number", "meaning"], rows)]

    def _kind(self, message: DescriptorProto, field: FieldDescriptorProto) -> str:
        for nested in message.nested_type:
            if nested.options.map_entry and field.type_name.endswith(f".{message.name}.{nested.name}"):
                key, value = nested.field
                return f"map of {self._plain(key)} to {self._plain(value)}"
        kind = self._plain(field)
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return f"repeated {kind}"
        return f"optional {kind}" if field.proto3_optional else kind

    def _plain(self, field: FieldDescriptorProto) -> str:
        if field.type_name:
            return self._type(field.type_name)
        return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()

    def _type(self, name: str) -> str:
        short = name.removeprefix(_PACKAGE)
        if short in self._where:
            return f"[{short}]({self._where[short]}.md#{short.lower().replace('.', '')})"
        return code(name.removeprefix("."))


def _numbered(path: Path_, parts: Iterable[Part]) -> list[tuple[Path_, Part]]:
    return [((*path, number), part) for number, part in enumerate(parts)]


def _names(file: FileDescriptorProto) -> list[str]:
    names = [enum.name for enum in file.enum_type]

    def add(message: DescriptorProto, outer: str) -> None:
        names.append(f"{outer}{message.name}")
        names.extend(f"{outer}{message.name}.{enum.name}" for enum in message.enum_type)
        for nested in message.nested_type:
            add(nested, f"{outer}{message.name}.")

    for message in file.message_type:
        add(message, "")
    return names


def _stem(file: FileDescriptorProto) -> str:
    return Path(file.name).stem


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].partition("\n\n")[0].rstrip(".") + "."
