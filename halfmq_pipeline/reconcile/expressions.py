"""Users' expressions in Spark SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from consumer_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

__all__ = ["columns_named", "filtered", "selected"]


def selected(frame: DataFrame, expressions: Mapping[str, str], fields: Mapping[str, str]) -> DataFrame:
    """Selects expressions under names.

    Args:
        frame: Their input.
        expressions: By the name of the column.
        fields: The settings of some of these names.

    Raises:
        ConfigurationError: Spark refuses one; the error names its setting.
    """
    # One by one: the error of a whole select does not name the expression.
    for name, setting in fields.items():
        _checked(frame, expressions[name], setting)
    return frame.selectExpr(*(f"({expression}) AS `{name}`" for name, expression in expressions.items()))


def filtered(frame: DataFrame, condition: str | None, setting: str) -> DataFrame:
    """The rows that meet a condition; None: all.

    Raises:
        ConfigurationError: Spark refuses it.
    """
    if condition is None:
        return frame
    _checked(frame, f"CAST(({condition}) AS boolean)", setting)
    return frame.where(condition)


def _checked(frame: DataFrame, expression: str, setting: str) -> None:
    try:
        frame.selectExpr(expression)
    except PySparkException as error:
        said = " ".join(str(error).split(";")[0].split("\n\n")[0].split())
        msg = f"{setting} {expression!r} cannot be computed: {said}"
        raise ConfigurationError(msg, field=setting) from None


def columns_named(known: Mapping[str, object], *texts: str | None) -> set[str]:
    """The columns whose names occur in some texts: a superset of those that they use."""
    words = " ".join(text for text in texts if text).replace("`", " ")
    return {name for name in known if name in words}
