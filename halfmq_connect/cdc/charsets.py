"""Character sets of MySQL and MariaDB: the codec of each collation, by the server's own numbers."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from halfmq_connect.cdc.errors import CannotFollow

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BINARY", "Charsets", "width_of"]

BINARY = "binary"

_CODECS = {
    "armscii8": "",
    "ascii": "ascii",
    "big5": "big5",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "euc_kr",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "latin1": "halfmq_latin1",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "sjis": "shift_jis",
    "tis620": "tis_620",
    "ucs2": "utf_16_be",
    "ujis": "euc_jp",
    "utf16": "utf_16_be",
    "utf16le": "utf_16_le",
    "utf32": "utf_32_be",
    "utf8": "utf_8",
    "utf8mb3": "utf_8",
    "utf8mb4": "utf_8",
}

_WIDTHS = {"utf8": 3, "utf8mb3": 3, "utf8mb4": 4, "ucs2": 2, "utf16": 4, "utf16le": 4, "utf32": 4, "gb18030": 4}
_WIDTHS |= dict.fromkeys(("big5", "cp932", "euckr", "gb2312", "gbk", "sjis"), 2) | {"ujis": 3, "eucjpms": 3}

# What MySQL calls latin1 is Windows' code page 1252, with its five gaps filled by the control characters of ISO 8859-1.
_LATIN1 = "".join(
    bytes([byte]).decode("latin-1" if byte in {0x81, 0x8D, 0x8F, 0x90, 0x9D} else "cp1252") for byte in range(256)
)


def _find(name: str) -> codecs.CodecInfo | None:
    if name != "halfmq_latin1":
        return None
    return codecs.CodecInfo(
        lambda text, errors="strict": codecs.charmap_encode(text, errors, codecs.charmap_build(_LATIN1)),
        lambda raw, errors="strict": codecs.charmap_decode(raw, errors, _LATIN1),
        name=name,
    )


codecs.register(_find)


def width_of(charset: str) -> int:
    """Bytes that a character has at most."""
    return _WIDTHS.get(charset, 1)


class Charsets:
    """The character sets of a server's collations."""

    def __init__(self, names: Mapping[int, str]) -> None:
        """Takes the name of each collation's character set, by the collation's number."""
        self._names = names

    def name(self, collation: int) -> str:
        """The character set of a collation.

        Raises:
            CannotFollow: The server has no such collation.
        """
        try:
            return self._names[collation]
        except KeyError:
            msg = f"the log names a collation, {collation}, that the server does not list"
            raise CannotFollow(msg) from None

    def codec(self, charset: str) -> str:
        """Python's codec of a character set.

        Raises:
            CannotFollow: There is none.
        """
        codec = _CODECS.get(charset)
        if not codec:
            msg = (
                f"texts in the character set {charset} cannot be decoded; convert the column to utf8mb4, or exclude it"
            )
            raise CannotFollow(msg)
        return codec
