"""Whether methods that a class writes anew can be called as those that they replace."""

from __future__ import annotations

from inspect import Parameter, isfunction, signature

from relaxcomm.errors import PluginError


def refuse_misfits(cls: type) -> None:
    """Refuse a method that takes other arguments than its role's: it would only fail in the middle of a run.

    Raises: PluginError that shows the arguments which the method is given.
    """
    for name, method in vars(cls).items():
        bases = [one for one in cls.__mro__[1:] if one.__module__.startswith("relaxcomm.")]
        replaced = [vars(one)[name] for one in bases if name in vars(one)][-1:]  # what the role says
        written = getattr(method, "__wrapped__", method)  # a static method has no self
        if not replaced or not all(map(isfunction, (method, written, *replaced))):
            continue
        given = signature(replaced[0]).parameters.values()
        by_name = {one.name: None for one in given if one.kind is Parameter.KEYWORD_ONLY}
        in_order = [one.name for one in given if one.kind is Parameter.POSITIONAL_OR_KEYWORD]
        try:
            signature(method).bind(*in_order, **by_name)
        except TypeError:
            shown = ", ".join(in_order + ["*"] * bool(by_name) + list(by_name))
            raise PluginError(
                f"{cls.__name__}.{name}{signature(method)} takes other arguments than it is given; "
                f"write def {name}({shown})"
            ) from None
