"""How options of commands are declared, and what their numbers may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer
from pydantic import Field, TypeAdapter, ValidationError

from relaxcomm.fields.allowed import in_words
from relaxcomm.fields.validation import shown, with_point

Seconds: TypeAlias = Annotated[float, Field(ge=1, allow_inf_nan=False)]
"""A wait that a local worker can keep."""
Traceback = Annotated[bool, typer.Option("--traceback", metavar="", help="Show where an error happened.")]


def option(help: str, *names: str, metavar: str, **more: Any) -> typer.models.OptionInfo:
    """An option that nothing stands for unless it is given, by its parameter's name or other ones."""
    found: typer.models.OptionInfo = typer.Option(
        *names, metavar=metavar, help=help, show_default=False, **more
    )
    return found


def written(hint: Any) -> Callable[[object], Any]:
    """What reads a number of this type, and says of all else what may be written; a `parser` of options.

    Example:
        >>> from relaxcomm.plugin import Steps
        >>> written(Steps)("16")
        16
    """
    adapter: TypeAdapter[Any] = TypeAdapter(hint)

    def read(text: object) -> Any:
        try:
            return adapter.validate_python(text)
        except ValidationError:
            raise typer.BadParameter(
                f"{shown(text)} is not allowed: write {in_words(hint)}{with_point(text, hint)}"
            ) from None

    return read
