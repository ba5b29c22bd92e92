"""The file: what is missing, unknown or wrong is named."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from halfmq_connect.cdc.config import read_settings, settings_of
from halfmq_connect.cdc.errors import WrongSetting

if TYPE_CHECKING:
    from pathlib import Path


def told(**changes: Any) -> dict[str, Any]:
    database = {"hosts": ["db:3306"], "user": "cdc", "password_env": "SECRET", "server_id": 7}
    whole = {"name": "shop", "broker": {"endpoint": "b:8085"}, "database": database}
    return {**whole, "table": [{"match": "shop.*", "topic": "rows"}], **changes}


def database(**changes: Any) -> dict[str, Any]:
    return {"database": {**told()["database"], **changes}}


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"name": "a b"}, "name", "letters"),
        ({"colour": 1}, "colour", "not a setting"),
        ({"broker": {}}, "broker", "endpoint"),
        ({"broker": {"endpoint": "nowhere:port"}}, "broker", "nowhere"),
        ({"broker": {"endpoint": "b:1", "tls_ca": "/does/not/exist"}}, "broker.tls_ca", "exist"),
        (database(password="x"), "database.password", "password_file"),
        (database(password_env="OTHER"), "database.password_env", "OTHER"),
        (database(password_file="/does/not/exist"), "database.password_file", "cannot be read"),
        (database(password_file=sys.executable), "database.password_file", "cannot be read"),
        (database(tls_ca="/does/not/exist"), "database.tls_ca", "No such file"),
        (database(tls_ca=__file__), "database.tls_ca", "cannot be used"),
        (database(hosts="db:3306"), "database.hosts", "list of texts"),
        (database(hosts=["db"]), "database.hosts", "host:port"),
        (database(hosts=[]), "database.hosts", "one server"),
        (database(server_id=0), "database.server_id", "4294967295"),
        (database(server_id="7"), "database.server_id", "int"),
        ({"table": []}, "table", "[[table]]"),
        ({"table": [{"match": "orders", "topic": "rows"}]}, "table[0].match", "database.table"),
        ({"table": [{"match": "shop.orders"}]}, "table[0]", "topic"),
        ({"table": [{"match": "a.b", "topic": "t", "order": "key"}]}, "table[0].order", "row, table, none"),
        ({"table": [{"match": "a.b", "topic": "t", "columns": ["a"], "exclude_columns": ["b"]}]}, "table[0].", "name"),
        ({"table": [], "outbox": {"table": "outbox"}}, "outbox.table", "database.table"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(WrongSetting) as found:
        settings_of(told(**changes), {"SECRET": "word"})
    assert found.value.field.startswith(field)
    assert words in str(found.value)


def test_secrets_are_not_shown() -> None:
    settings = settings_of(told(), {"SECRET": "word"})
    assert settings.database.password == "word"
    assert "word" not in repr(settings).replace("password", "")


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    with pytest.raises(WrongSetting, match="cannot be read"):
        read_settings(file)
    file.write_text("name = ")
    with pytest.raises(WrongSetting, match="not TOML"):
        read_settings(file)
