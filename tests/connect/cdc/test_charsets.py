"""Texts in all character sets: Python decodes what the server does, or refuses; never another text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pymysql

from halfmq_connect.cdc.charsets import _CODECS

if TYPE_CHECKING:
    from connect.cdc.sources import Source

SEVERAL = {"big5", "cp932", "eucjpms", "euckr", "gb2312", "gbk", "sjis", "ujis", "gb18030"}
# What the server has no character for, it shows so; such bytes come into a column as bytes only.
UNDEFINED = ("?", "\ufffd")


def test_codecs_are_those_of_the_server(source: Source) -> None:
    differ = []
    with source.connect() as connection, connection.cursor() as cursor:
        for name in (name for name, codec in _CODECS.items() if codec and not name.startswith(("utf", "ucs"))):
            raws = [bytes([byte]) for byte in range(128 if name in SEVERAL else 256)]
            if name in SEVERAL:
                raws += [bytes([first, second]) for first in range(0x81, 0xFF) for second in range(0x40, 0xFF)]
            for at in range(0, len(raws), 1000):
                some = raws[at : at + 1000]
                texts = (f"HEX(CONVERT(CONVERT(x'{raw.hex()}' USING {name}) USING utf8mb4))" for raw in some)
                try:
                    cursor.execute(f"SELECT {', '.join(texts)}")
                except pymysql.err.OperationalError as error:
                    assert error.args[0] == 1115, error  # MariaDB has not all of them.
                    break
                for raw, shown in zip(some, cursor.fetchone(), strict=True):
                    server = bytes.fromhex(shown or "").decode()
                    if not shown or (raw != b"?" and any(each in server for each in UNDEFINED)):
                        continue
                    try:
                        if (own := raw.decode(_CODECS[name])) != server:
                            differ.append((name, raw.hex(), server, own))
                    except UnicodeDecodeError:
                        # Some rare characters of Asian sets: a subscription stops there.
                        if name not in SEVERAL:
                            differ.append((name, raw.hex(), server, ""))
    # gb18030 was revised in 2005.
    assert [each for each in differ if each[:2] != ("gb18030", "a8bc")] == []
