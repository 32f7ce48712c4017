"""Kinds of experiments: the data, the model and the task that belong together.

:data:`KINDS` has one entry for each. A config selects its kind by ``data.corpus``; all other code
uses :attr:`~jaxformer.config.Config.kind`.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from jaxformer.data.corpus import DataConfig, DataSection
from jaxformer.data.images import ImagesConfig
from jaxformer.data.labeled import LabeledConfig
from jaxformer.data.stream import StreamConfig, load_stream_tokenizer
from jaxformer.data.tokenizer import Tokenizer, Vocabulary
from jaxformer.errors import UserError
from jaxformer.fields import fields_given
from jaxformer.models.architecture import Architecture
from jaxformer.models.assembly import Model
from jaxformer.models.bert import Bert
from jaxformer.models.encoder import Encoder
from jaxformer.models.gpt2 import GPT2
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.llama import Llama
from jaxformer.models.student import Student
from jaxformer.models.t5 import T5
from jaxformer.models.transformer import Transformer
from jaxformer.models.vit import ViT
from jaxformer.nn.parameters import describe
from jaxformer.nn.stack import Remat

_TOKENS = jax.ShapeDtypeStruct((1, 1), jnp.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of experiment: the classes of its data, models and task."""

    description: str  # of its models, in error messages
    commands: str  # for its models
    use: str  # what to do with the model in a {workdir}
    corpora: tuple[str, ...]  # values of data.corpus that select it
    data: type[DataSection]
    networks: tuple[type[Model], ...]  # its models; the first is the default
    # shapes and dtypes of the arrays that a model takes, for one row
    inputs: Callable[[Any], tuple[jax.ShapeDtypeStruct, ...]] = lambda model: (_TOKENS,)
    load_tokenizer: Callable[[pathlib.Path], Vocabulary] | None = Tokenizer.load
    task: str  # module and name

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


TRANSLATION = Kind(
    description="a model of sentence pairs",
    commands="jaxformer translate",
    use="translate with jaxformer translate --workdir {workdir}",
    corpora=("text", "tfds", "numerals", "parquet", "jsonl", "tsv"),
    data=DataConfig,
    networks=(Transformer, T5, Student),
    inputs=lambda model: (_TOKENS, _TOKENS),
    task="jaxformer.tasks.translation.Translation",
)
PARSING = dataclasses.replace(
    TRANSLATION,
    description="a parser",
    commands="jaxformer parse",
    use="parse with jaxformer parse --workdir {workdir}",
    corpora=("trees",),
    task="jaxformer.tasks.parsing.task.Parsing",
)
LANGUAGE_MODELING = Kind(
    description="a language model",
    commands="jaxformer generate",
    use="generate with jaxformer generate --workdir {workdir}",
    corpora=("stream",),
    data=StreamConfig,
    networks=(LanguageModel, GPT2, Llama),
    load_tokenizer=load_stream_tokenizer,
    task="jaxformer.tasks.language_modeling.LanguageModeling",
)
CLASSIFICATION = Kind(
    description="a classifier",
    commands="jaxformer classify",
    use="classify with jaxformer classify --workdir {workdir}",
    corpora=("labeled",),
    data=LabeledConfig,
    networks=(Encoder, Bert),
    task="jaxformer.tasks.classification.task.Classification",
)
MASKED_LANGUAGE_MODELING = dataclasses.replace(
    CLASSIFICATION,
    description="a masked language model",
    commands="training.init_from of a classifier",
    use="train a classifier with --config.training.init_from={workdir}",
    corpora=("masked",),
    task="jaxformer.tasks.classification.task.MaskedLanguageModeling",
)
IMAGE_CLASSIFICATION = Kind(
    description="a classifier of pictures",
    commands="jaxformer classify --images",
    use="classify with jaxformer classify --images FILE.npz --workdir {workdir}",
    corpora=("images", "digits", "tfds_images"),
    data=ImagesConfig,
    networks=(ViT,),
    inputs=lambda model: (jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32),),
    load_tokenizer=None,
    task="jaxformer.tasks.images.task.ImageClassification",
)
KINDS = (
    TRANSLATION,
    PARSING,
    LANGUAGE_MODELING,
    CLASSIFICATION,
    MASKED_LANGUAGE_MODELING,
    IMAGE_CLASSIFICATION,
)


def kind_of(corpus: object) -> Kind:
    """Returns the kind of experiment on a corpus; translation if there is no such corpus."""
    return next((kind for kind in KINDS if corpus in kind.corpora), TRANSLATION)


@functools.lru_cache
def make_init(model: Architecture, kind: Kind = TRANSLATION) -> Callable[[Array], PyTree]:
    """Returns a function that creates the float32 parameters of a model from a key."""

    def init(key: Array) -> PyTree:
        inputs = [jnp.ones(each.shape, each.dtype) for each in kind.inputs(model)]
        variables = kind.build(model).init(key, *inputs)
        return variables["params"]

    return init


@functools.lru_cache
def describe_model(model: Architecture, kind: Kind = TRANSLATION) -> PyTree:
    """Returns a :class:`~jaxformer.nn.ParameterInfo` for each parameter."""
    init = make_init(model, kind)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return describe(init, key)
