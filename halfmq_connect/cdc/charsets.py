"""Character sets of MySQL and MariaDB: the codec of each collation, by the server's own numbers."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from halfmq_connect.cdc.errors import CannotFollow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import ReadableBuffer as Buffer

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
    "cp866": "halfmq_cp866",
    "cp932": "cp932",
    "eucjpms": "halfmq_eucjpms",
    "euckr": "cp949",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "greek": "halfmq_greek",
    "hebrew": "halfmq_hebrew",
    "koi8r": "koi8_r",
    "koi8u": "halfmq_koi8u",
    "latin1": "halfmq_latin1",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "sjis": "halfmq_sjis",
    "tis620": "tis_620",
    "ucs2": "utf_16_be",
    "ujis": "halfmq_ujis",
    "utf16": "utf_16_be",
    "utf16le": "utf_16_le",
    "utf32": "utf_32_be",
    "utf8": "utf_8",
    "utf8mb3": "utf_8",
    "utf8mb4": "utf_8",
}

_WIDTHS = {"utf8": 3, "utf8mb3": 3, "utf8mb4": 4, "ucs2": 2, "utf16": 4, "utf16le": 4, "utf32": 4, "gb18030": 4}
_WIDTHS |= dict.fromkeys(("big5", "cp932", "euckr", "gb2312", "gbk", "sjis"), 2) | {"ujis": 3, "eucjpms": 3}

# Python's codecs that are almost the server's, and the characters that differ. What MySQL calls latin1 is Windows' code
# page 1252, with its five gaps filled by the control characters of ISO 8859-1.
_SINGLE = {
    "halfmq_cp866": ("cp866", {0xFC: "ⁿ", 0xFD: "²"}),
    "halfmq_greek": ("iso8859_7", {0xA1: "\u02bd", 0xA2: "\u02bc"}),
    "halfmq_hebrew": ("iso8859_8", {0xAF: "\u203e"}),
    "halfmq_koi8u": ("koi8_u", {0x95: "\u2022"}),
    "halfmq_latin1": ("cp1252", {byte: chr(byte) for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}),
}
_SEVERAL = {
    "halfmq_eucjpms": ("euc_jp", str.maketrans("\u301c\u2016\u2212¢£¬", "\uff5e\u2225\uff0d\uffe0\uffe1\uffe2")),
    "halfmq_sjis": ("shift_jis", str.maketrans("\uff3c", "\\")),
    "halfmq_ujis": ("euc_jp", str.maketrans("\uff3c", "\\")),
}
_UNDEFINED = "\ufffe"


def _find(name: str) -> codecs.CodecInfo | None:
    if name in _SINGLE:
        base, own = _SINGLE[name]
        table = "".join(own.get(byte) or bytes([byte]).decode(base, "replace") for byte in range(256))
        table = table.replace("\ufffd", _UNDEFINED)
        return codecs.CodecInfo(
            _no_encoder, lambda raw, errors="strict": codecs.charmap_decode(raw, errors, table), name=name
        )
    if name in _SEVERAL:
        base, others = _SEVERAL[name]
        decode = codecs.getdecoder(base)

        def decoded(raw: Buffer, errors: str = "strict", /) -> tuple[str, int]:
            text, size = decode(raw, errors)
            return text.translate(others), size

        return codecs.CodecInfo(_no_encoder, decoded, name=name)
    return None


def _no_encoder(text: str, errors: str = "strict") -> tuple[bytes, int]:
    raise NotImplementedError


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
