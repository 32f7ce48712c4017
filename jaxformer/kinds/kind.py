"""The class of kinds of experiments."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.data.corpus import DataSection
from jaxformer.data.tokenizer import Tokenizer, Vocabulary
from jaxformer.errors import UserError
from jaxformer.fields import fields_given
from jaxformer.models.architecture import Architecture
from jaxformer.models.assembly import Model
from jaxformer.nn.stack import Remat

TOKENS = jax.ShapeDtypeStruct((1, 1), jnp.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of experiment: the classes of its data and models."""

    description: str  # of its models, in error messages
    commands: str  # for its models
    use: str  # what to do with the model in a {workdir}
    corpora: tuple[str, ...]  # values of data.corpus that select it
    data: type[DataSection]
    networks: tuple[type[Model], ...]  # its models; the first is the default
    # shapes and dtypes of the arrays that a model takes, for one row
    inputs: Callable[[Any], tuple[jax.ShapeDtypeStruct, ...]] = lambda model: (TOKENS,)
    load_tokenizer: Callable[[pathlib.Path], Vocabulary] | None = Tokenizer.load

    def build(self, model: Architecture, remat: Remat = "none") -> Model:
        """Returns the model that a section ``model`` describes."""
        # A section can be a subclass of a network's.
        network = next(
            network
            for section in type(model).mro()
            for network in self.networks
            if network.section is section
        )
        _check_fields(model, network)
        return network(model, remat)

    def section_of(self, architecture: Any) -> type[Architecture]:
        """Returns the class of a section ``model`` by its field ``architecture``."""
        found = {network.section.architecture: network.section for network in self.networks}
        if architecture not in found:
            raise UserError(
                f"model.architecture must be one of {', '.join(found)} for {self.description}: got "
                f"{architecture!r:.80}"
            )
        return found[architecture]


def _check_fields(model: Architecture, network: type[Model]) -> None:
    """Refuses a field of a subclass of a section, which the network would ignore."""
    known = {field.name for field in dataclasses.fields(network.section)}
    for name in fields_given(model):
        if name not in known:
            raise UserError(
                f"{type(model).__name__}: expected fields of a {network.section.__name__}, which "
                f"is all that {network.__name__} reads, got {name}={getattr(model, name)!r:.80}; "
                "leave it at its default, or build a model of your own"
            )
