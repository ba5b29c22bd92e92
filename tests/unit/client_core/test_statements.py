"""What a statement does to its transaction; long values are gone through once at most."""

from __future__ import annotations

import pytest

from client_core.local_database.statements import ending_of, forms_of, is_harmless

LONG = 1_000_000


@pytest.mark.parametrize(
    ("text", "forms"),
    [
        ("SELECT 1", ("SELECT 1",)),
        ("/*! COMMIT */", ("  COMMIT  ", " ")),
        ("a /*!40101 b */ c /*M! d */ e", ("a   b   c   d   e", "a   c   e")),
        ("a /*! b", ("a   b", "a /*! b")),
        ("/*/*M!/* /*!/*/*! x", ("/* /*  /*  x", "/*   *! x")),
    ],
)
def test_forms(text: str, forms: tuple[str, ...]) -> None:
    assert [each.split() for each in forms_of(text, "mysql")] == [each.split() for each in forms]
    assert forms_of(text, "postgresql") == (text,)


@pytest.mark.parametrize("takes_several", [False, True])
@pytest.mark.parametrize("part", ["/*! ", "/*M!", "/* ", "-- ", "# ", "*/", "/*!*/", "(", "; "])
def test_long_values_take_no_time(part: str, takes_several: bool) -> None:
    value = part * LONG
    inserts = f"INSERT INTO t (a) VALUES ('{value}')"
    assert is_harmless(inserts, "mysql", takes_several=takes_several) is not (takes_several and ";" in part)
    creates = f"CREATE PROCEDURE p() SELECT '{value}'"
    assert not is_harmless(creates, "mysql", takes_several=takes_several)
    assert all(ending_of(form, "mysql") for form in forms_of(creates, "mysql"))
    is_harmless(value, "mysql", takes_several=takes_several)


@pytest.mark.parametrize(
    "text", ["/*! COMMIT */ SELECT 1", "/*!50000 CREATE TABLE t AS */ SELECT 1", "SELECT 1; COMMIT"]
)
def test_what_hides_behind_a_harmless_word(text: str) -> None:
    assert not is_harmless(text, "mysql", takes_several=True)
