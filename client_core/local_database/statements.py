"""What a statement does to the transaction it runs in, as far as its first words tell."""

from __future__ import annotations

import re

__all__ = ["RELEASE", "ROLLBACK_TO", "SAVEPOINT", "ending_of", "forms_of", "is_harmless"]

_COMMENT = r"--[^\n]*(?:\n|\Z)|\#[^\n]*(?:\n|\Z)|/\*.*?\*/"
_BEFORE = rf"(?>\s+|\(|{_COMMENT})*+"
"""What may stand before the first word."""
_GAP = rf"(?>\s+|{_COMMENT})++"
"""What stands between two words."""
_NAME = r"(`[^`]*`|\"[^\"]*\"|\[[^\]]*\]|[^\s;/#]+)"
_FLAGS = re.IGNORECASE | re.DOTALL

SAVEPOINT = re.compile(rf"{_BEFORE}SAVEPOINT{_GAP}{_NAME}", _FLAGS)
"""Sets one; its name is the first group, here and below."""
RELEASE = re.compile(rf"{_BEFORE}RELEASE{_GAP}(?:SAVEPOINT{_GAP})?{_NAME}", _FLAGS)
ROLLBACK_TO = re.compile(
    rf"{_BEFORE}ROLLBACK{_GAP}(?:(?:WORK|TRANSACTION){_GAP})?TO{_GAP}(?:SAVEPOINT{_GAP})?{_NAME}", _FLAGS
)

_COMMENTS = re.compile(_COMMENT, _FLAGS)
_NOTHING = re.compile(rf"(?>[\s;]+|{_COMMENT})*+\Z", _FLAGS)
_ROWS = r"(?:SELECT|INSERT|UPDATE|DELETE|REPLACE|MERGE|WITH|VALUES|TABLE|EXPLAIN|SHOW|DESCRIBE)\b"
_HARMLESS = re.compile(_BEFORE + _ROWS, _FLAGS)
_PLAINLY_HARMLESS = re.compile(r"[\s(]*+" + _ROWS, _FLAGS)
"""By a first word that no comment can change."""
_ENDS = re.compile(_BEFORE + rf"(?:(?:COMMIT|ROLLBACK|ABORT|END)\b|PREPARE{_GAP}TRANSACTION\b)", _FLAGS)
_MAINTENANCE = (
    r"BEGIN|ALTER|RENAME|TRUNCATE|GRANT|REVOKE|OPTIMIZE|REPAIR|FLUSH|INSTALL|UNINSTALL|CHANGE|"
    rf"START{_GAP}(?:TRANSACTION|REPLICA|SLAVE|GROUP_REPLICATION|ALL)|STOP{_GAP}(?:REPLICA|SLAVE|GROUP_REPLICATION|ALL)|"
    rf"RESET{_GAP}(?:REPLICA|SLAVE|MASTER|BINARY)|LOCK{_GAP}TABLES?|CHECK{_GAP}(?:TABLE|VIEW)|IMPORT{_GAP}TABLE|"
    rf"(?:CACHE|LOAD){_GAP}INDEX|SET{_GAP}(?:PASSWORD|DEFAULT{_GAP}ROLE)|"
    rf"ANALYZE{_GAP}(?:(?:LOCAL|NO_WRITE_TO_BINLOG){_GAP})?TABLES?"
)
_ENDS_ON_MYSQL = re.compile(
    _BEFORE + rf"(?:(?:{_MAINTENANCE})\b"
    # ALTER and TRUNCATE commit for a temporary table as well, and so does CREATE INDEX on one.
    rf"|CREATE{_GAP}(?!(?:OR{_GAP}REPLACE{_GAP})?TEMPORARY\b)|DROP{_GAP}(?!TEMPORARY\b|PREPARE\b)"
    rf"|SET{_GAP}(?!GLOBAL\b|PERSIST)[^;]*?(?<!GLOBAL\.)\bAUTOCOMMIT\b`?\s*:?=(?!\s*(?:0|OFF|FALSE)\b))",
    _FLAGS,
)
_BEGIN_OF_CONDITIONAL = re.compile(r"/\*M?!\d*")
_BEGINNING = 2000
"""Characters of a statement that hold its first words, also behind a comment."""


def forms_of(text: str, dialect: str) -> tuple[str, ...]:
    """A statement as the server may read it: MySQL runs what is in a comment ``/*! ... */``, if its version is to."""
    if dialect != "mysql" or ("/*!" not in text and "/*M!" not in text):
        return (text,)
    return _BEGIN_OF_CONDITIONAL.sub(" ", text).replace("*/", " "), _without_conditionals(text)


def _without_conditionals(text: str) -> str:
    # Goes through it once: a value may have many beginnings without an end.
    parts, at = [], 0
    while (begins := _BEGIN_OF_CONDITIONAL.search(text, at)) and (end := text.find("*/", begins.end())) >= 0:
        parts.append(text[at : begins.start()])
        at = end + 2
    return " ".join([*parts, text[at:]])


def is_harmless(text: str, dialect: str, *, takes_several: bool) -> bool:
    """Whether it reads or changes rows, and no more than that, however the server reads it.

    Args:
        text: It.
        dialect: The database.
        takes_several: The server may take several statements at once, separated by semicolons.
    """
    if not takes_several and _PLAINLY_HARMLESS.match(text):
        return True  # Without a look at its values, which may be long.
    return all(_reads_or_changes_rows(form, takes_several=takes_several) for form in forms_of(text, dialect))


def _reads_or_changes_rows(text: str, *, takes_several: bool) -> bool:
    if takes_several and ";" in text.rstrip("; \n\t"):
        return False
    return _HARMLESS.match(text) is not None or _NOTHING.match(text) is not None


def ending_of(text: str, dialect: str) -> str | None:
    """The first words of a statement that always ends the transaction; None: it may not."""
    if not _ENDS.match(text) and not (dialect == "mysql" and _ENDS_ON_MYSQL.match(text)):
        return None
    return " ".join(_COMMENTS.sub(" ", text[:_BEGINNING]).strip(" ();\n\t").split(maxsplit=2)[:2])[:60]
