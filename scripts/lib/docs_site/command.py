"""Reference pages of the command `halfmq`: every command and option, with the text of its help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.main import get_command

from docs_site.prose import cell, code, prose, table
from halfmq_cli.commands import app

if TYPE_CHECKING:
    from collections.abc import Iterator


def pages() -> dict[str, str]:
    """The pages, by their place on the site: one for each command, with those below it."""
    root = get_command(app)
    context = _context(root, None, "halfmq")
    made, rows = {}, []
    names = root.list_commands(context)  # type: ignore[attr-defined]
    for name in names:
        command = root.get_command(context, name)  # type: ignore[attr-defined]
        made[f"reference/command/{name}.md"] = "\n".join(_described(command, context, name, 1))
        rows.append([f"[`halfmq {name}`]({name}.md)", cell(_unescaped(command.help).partition("\n")[0])])
    index = [
        "# The command halfmq",
        "",
        "Made from the commands themselves; `halfmq COMMAND --help` shows the same.",
        "",
        table(["command", "what it does"], rows),
        *["```{toctree}", ":hidden:", ":titlesonly:", "", *names, "```", ""],
    ]
    return {**made, "reference/command/index.md": "\n".join(index)}


def _described(command: Any, parent: Any, name: str, level: int) -> Iterator[str]:
    context = _context(command, parent, name)
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    yield from [f"{'#' * level} {context.command_path}", "", prose(_unescaped(command.help)), ""]
    yield from ["```text", usage, "```", ""]
    records = [(param.opts[0].startswith("-"), param.get_help_record(context)) for param in command.params]
    for is_option, heading in ((False, "argument"), (True, "option")):
        rows = [
            [code(form), cell(_unescaped(told))]
            for is_one, (form, told) in ((is_one, record) for is_one, record in records if record)
            if is_one is is_option
        ]
        yield table([heading, "meaning"], rows)
    if hasattr(command, "list_commands"):
        for each in command.list_commands(context):
            yield from _described(command.get_command(context, each), context, each, level + 1)


def _context(command: Any, parent: Any, name: str) -> Any:
    return command.context_class(command, info_name=name, parent=parent)


def _unescaped(text: str | None) -> str:
    """Without what keeps Typer from taking brackets for markup."""
    return (text or "").replace("\\[", "[")
