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
from jaxformer.nn.rematerialization import Remat

TOKENS = jax.ShapeDtypeStruct((1, 1), jnp.int32)  # one row with one token


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of experiment: the classes of its data and models.

    Attributes:
      description: A model of this kind, such as "a parser", in messages.
      commands: The commands that use its models, in messages.
      use: What to do with a trained model in ``{workdir}``, in messages.
      corpora: Values of ``data.corpus`` that select the kind.
      data: Class of its section ``data``.
      networks: Classes of its models; the first is the default.
      inputs: Returns shapes and dtypes of the arrays that a model takes, for one row, given its
        section ``model``.
      load_tokenizer: Reads the tokenizer in a workdir; None if models have none.
    """

    description: str
    commands: str
    use: str
    corpora: tuple[str, ...]
    data: type[DataSection]
    networks: tuple[type[Model], ...]
    inputs: Callable[[Any], tuple[jax.ShapeDtypeStruct, ...]] = lambda model: (TOKENS,)
    load_tokenizer: Callable[[pathlib.Path], Vocabulary] | None = Tokenizer.load

    def build(self, model: Architecture, remat: Remat = "none") -> Model:
        """Returns the model that a section ``model`` describes."""
        network = self.network_of(model)
        _check_fields(model, network)
        return network(model, remat)

    def network_of(self, model: Architecture) -> type[Model]:
        """Returns the class of the model that a section describes."""
        by_section = {network.section: network for network in self.networks}

        # The class of the section can be a subclass of a network's.
        section = next(cls for cls in type(model).mro() if cls in by_section)
        return by_section[section]

    def section_of(self, architecture: Any) -> type[Architecture]:
        """Returns the class of a section ``model`` by its field ``architecture``."""
        found = {}
        for network in self.networks:
            found |= dict.fromkeys(network.section.architectures(), network.section)

        if architecture not in found:
            raise UserError(
                f"model.architecture must be one of {', '.join(found)} for {self.description}: got "
                f"{architecture!r:.80}"
            )
        return found[architecture]


def _check_fields(model: Architecture, network: type[Model]) -> None:
    """Refuses a field that only a subclass of the network's section has, and would be ignored."""
    known = {field.name for field in dataclasses.fields(network.section)}
    for name in fields_given(model):
        if name not in known:
            raise UserError(
                f"{type(model).__name__}: expected fields of a {network.section.__name__}, which "
                f"is all that {network.__name__} reads, got {name}={getattr(model, name)!r:.80}; "
                "leave it at its default, or build a model of your own"
            )
