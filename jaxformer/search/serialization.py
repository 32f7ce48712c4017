"""Search algorithms as plain values, for config files and the command line."""

import dataclasses
import re
import typing
from typing import Any

from jaxformer.errors import UserError
from jaxformer.fields import check_known
from jaxformer.search.beam import BeamSearch
from jaxformer.search.sampling import Sampling

# Search algorithms by the "method" in a config file, which has the fields of all methods, so that
# the command line can change the method.
SEARCHES: dict[str, type[BeamSearch | Sampling]] = {"beam": BeamSearch, "sampling": Sampling}
# Ids belong to the vocabulary, and constraints are not plain values.
_NOT_IN_FILES = ("bos_id", "eos_id", "pad_id", "constraints")


def to_dict(search: BeamSearch | Sampling) -> dict[str, Any]:
    """Returns plain values: the method, its fields, and the defaults of other methods' fields."""
    if search.constraints:
        raise UserError(
            f"search.constraints cannot be part of a file: got {search.constraints}; give them to "
            "the Translator"
        )
    method = next(name for name, kind in SEARCHES.items() if isinstance(search, kind))
    defaults = {name: default for name, (_, default) in search_fields().items()}
    own = {name: getattr(search, name) for name in _file_fields(type(search))}
    return {**defaults, "method": method, **own}


def from_dict(values: dict[str, Any]) -> BeamSearch | Sampling:
    """Builds and validates a search from plain values; the inverse of :func:`to_dict`."""
    fields = search_fields()
    check_known(values, fields, "search.")
    values = {name: default for name, (_, default) in fields.items()} | values
    if (method := values.pop("method")) not in [*SEARCHES]:
        raise UserError(
            f"search.method must be one of {', '.join(map(repr, SEARCHES))}: got {method!r}"
        )
    if method == "sampling":
        # Files of earlier releases have only the beam size, also as the number of samples.
        samples, values["beam_size"] = values["beam_size"], fields["beam_size"][1]
        if values["num_samples"] is None:
            values["num_samples"] = samples
    own = _file_fields(SEARCHES[method])
    for name, value in values.items():
        if name not in own and value != fields[name][1]:
            other = next(m for m, kind in SEARCHES.items() if name in _file_fields(kind))
            raise UserError(
                f"search.{name} needs search.method={other}: got {value} with "
                f"search.method={method}"
            )
    try:
        return SEARCHES[method](**{name: values[name] for name in own if values[name] is not None})
    except UserError as error:
        names = "|".join(fields)
        raise UserError(re.sub(rf"\b({names})\b", r"search.\1", str(error))) from None


def _file_fields(kind: type[BeamSearch | Sampling]) -> list[str]:
    return [f.name for f in dataclasses.fields(kind) if f.name not in _NOT_IN_FILES]


def search_fields() -> dict[str, tuple[Any, Any]]:
    """Returns type and default of every search field in a file."""
    fields: dict[str, tuple[Any, Any]] = {"method": (str, "beam"), "beam_size": (int, 4)}
    for kind in SEARCHES.values():
        hints = typing.get_type_hints(kind)
        for name in _file_fields(kind):
            fields.setdefault(name, (hints[name], getattr(kind, name)))
    return fields | {"num_samples": (int | None, None)}
