"""Search algorithms as plain values, for config files and the command line."""

import re
import typing
from typing import Any

from jaxformer.errors import UserError
from jaxformer.fields import check_known, facts_of
from jaxformer.search.beam import BeamSearch
from jaxformer.search.sampling import Sampling

# Search algorithms by the "method" in a config file, which has the fields of all methods, so that
# the command line can change the method.
SEARCHES: dict[str, type[BeamSearch | Sampling]] = {
    "beam": BeamSearch,
    "sampling": Sampling,
}


def to_dict(search: BeamSearch | Sampling) -> dict[str, Any]:
    """Returns plain values: the method, its fields, and the defaults of other methods' fields."""
    if search.constraints:
        raise UserError(
            f"search.constraints cannot be part of a file: got {search.constraints}; give them to "
            "the Translator"
        )

    methods = [name for name, kind in SEARCHES.items() if isinstance(search, kind)]
    values = _defaults()
    values["method"] = methods[0]
    for name in _file_fields(type(search)):
        values[name] = getattr(search, name)
    return values


def from_dict(values: dict[str, Any]) -> BeamSearch | Sampling:
    """Builds and validates a search from plain values; the inverse of :func:`to_dict`."""
    fields = search_fields()
    check_known(values, fields, "search.")
    defaults = _defaults()
    values = defaults | values

    method = values.pop("method")
    if method not in [*SEARCHES]:
        raise UserError(
            f"search.method must be one of {', '.join(map(repr, SEARCHES))}: got {method!r}"
        )

    if method == "sampling":
        # Files of earlier releases have only the beam size, also as the number of samples.
        if values["num_samples"] is None:
            values["num_samples"] = values["beam_size"]
        values["beam_size"] = defaults["beam_size"]

    # Fields of other methods may be there, but without effect they must have their defaults.
    kind = SEARCHES[method]
    own = _file_fields(kind)
    for name, value in values.items():
        if name not in own and value != defaults[name]:
            others = [m for m, other in SEARCHES.items() if name in _file_fields(other)]
            raise UserError(
                f"search.{name} needs search.method={others[0]}: got {value} with "
                f"search.method={method}"
            )

    given = {name: values[name] for name in own if values[name] is not None}
    try:
        return kind(**given)
    except UserError as error:
        # In a config file, the fields of a search are called search.NAME.
        names = "|".join(fields)
        message = re.sub(rf"\b({names})\b", r"search.\1", str(error))
        raise UserError(message) from None


def _file_fields(kind: type[BeamSearch | Sampling]) -> list[str]:
    return [name for name, facts in facts_of(kind).items() if facts.in_files]


def search_fields() -> dict[str, tuple[Any, Any]]:
    """Returns type and default of every search field in a file."""
    fields: dict[str, tuple[Any, Any]] = {
        "method": (str, "beam"),
        "beam_size": (int, 4),
    }
    for kind in SEARCHES.values():
        hints = typing.get_type_hints(kind)
        for name in _file_fields(kind):
            fields.setdefault(name, (hints[name], getattr(kind, name)))

    # None: files of earlier releases do not have it.
    fields["num_samples"] = (int | None, None)
    return fields


def _defaults() -> dict[str, Any]:
    """Returns the default of every search field in a file."""
    return {name: default for name, (_, default) in search_fields().items()}
