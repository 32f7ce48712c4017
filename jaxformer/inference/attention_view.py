"""Records the attention weights of every layer and head on one sentence."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxformer.data.tokenizer import BOS, EOS
from jaxformer.errors import UserError
from jaxformer.inference.generator import Generator
from jaxformer.inference.members import recorded_weights
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import TrainedModel
from jaxformer.kinds import CLASSIFICATION, LANGUAGE_MODELING, MASKED_LANGUAGE_MODELING
from jaxformer.layout import global_mesh
from jaxformer.plots.attention_page import AttentionView

# Kinds of models of one text, whose only attention is to this text.
ONE_TEXT = (CLASSIFICATION, MASKED_LANGUAGE_MODELING, LANGUAGE_MODELING)


@global_mesh(None)
def record_text(
    workdir: str | pathlib.Path, sentence: str, *, weights: str | int = "auto"
) -> AttentionView:
    """Reads a text and records the attention weights of every layer and head.

    Args:
      workdir: The run directory of a classifier, a masked language model or a language model.
      sentence: The text. A classifier also gives its label.
      weights: Checkpoint; see :func:`~jaxformer.load_model`.

    Raises:
      UserError: The text is longer than the model allows, or the workdir is of another kind.
    """
    trained = TrainedModel.load(workdir, weights=weights, kinds=ONE_TEXT)
    config, tokenizer = trained.config, trained.tokenizer
    if config.kind is LANGUAGE_MODELING:
        side, stack = "target", "decoder"
        given = Generator(config, trained.params, tokenizer).prompt_ids(sentence)
    else:
        side, stack = "source", "encoder"
        given = [*tokenizer.encode_batch([sentence])[0], EOS]
    network = config.kind.build(config.model)
    apply = jax.jit(network.apply, static_argnames="mutable")
    variables = {"params": trained.params}
    output, recorded = apply(variables, jnp.asarray([given]), mutable="intermediates")
    found = jax.device_get(recorded_weights(network, recorded, stack, "self_attention"))
    pieces = [tokenizer.piece(i).translate({ord(" "): "▁", ord("\n"): "↵"}) for i in given]
    return AttentionView(
        sentence=sentence,
        translation=tokenizer.symbols[output.argmax()] if config.kind is CLASSIFICATION else "",
        **{"source": [], "target": [], side: pieces, stack: found[:, 0]},
    )


@global_mesh(None)
def record_attention(translator: Translator, sentence: str) -> AttentionView:
    """Translates a sentence and records the attention weights of every layer and head.

    Args:
      translator: Its search finds the translation. For an ensemble, the first model's attention is
        recorded.
      sentence: Source text.

    Raises:
      UserError: The sentence is empty or longer than the model allows.
    """
    source = translator.source_ids(sentence)
    if not source:
        raise UserError("expected a sentence, got an empty one")
    tokenizer = translator.tokenizer
    found = translator.translate_ids([source], n_best=1)[0].tokens
    translation = found[0] if found else []
    target = [BOS, *translation[:-1]]  # decoder inputs: the token at t predicts token t + 1
    member = translator.models[0]
    apply = jax.jit(member.model.apply, static_argnames="mutable")
    sides = (jnp.asarray([ids], jnp.int32) for ids in (source, target))
    _, recorded = apply({"params": member.params}, *sides, mutable="intermediates")

    def weights(stack: str, sublayer: str) -> Float[np.ndarray, "L H T S"]:
        return np.asarray(recorded_weights(member.model, recorded, stack, sublayer))[:, 0]

    return AttentionView(
        sentence=sentence,
        translation=translator.detokenize(translation),
        source=[tokenizer.piece(i) for i in source],
        target=[tokenizer.piece(i) for i in target],
        encoder=weights("encoder", "self_attention"),
        decoder=weights("decoder", "self_attention"),
        cross=weights("decoder", "cross_attention"),
    )
