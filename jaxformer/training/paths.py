"""Paths of parameters, by which settings name them."""

import jax

from jaxformer.errors import UserError


def path_of(path: jax.tree_util.KeyPath) -> str:
    """Returns the path of a parameter with slashes, such as "encoder/layers/norm"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def paths_with(name: str, paths: list[str], field: str, what: str = "parameter") -> set[str]:
    """Returns the paths that contain a name, which a ``field`` of a config gives."""
    found = {path for path in paths if f"/{name}/" in f"/{path}/"}
    if found:
        return found

    # A dictionary keeps the order of the parameters.
    known = {}
    for path in paths:
        known |= dict.fromkeys(path.split("/"))
    raise UserError(
        f"{field}: no {what} is called {name!r}; give names separated by commas out of "
        f"{', '.join(known)}, or several in a row such as {paths[0]}"
    )
