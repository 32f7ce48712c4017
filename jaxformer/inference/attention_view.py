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
from jaxformer.kinds.classification import CLASSIFICATION
from jaxformer.kinds.language_modeling import LANGUAGE_MODELING
from jaxformer.kinds.selection import encoder_kinds
from jaxformer.layout import global_mesh
from jaxformer.plots.attention_page import AttentionView

# Kinds of models of one text, whose only attention is to this text.
ONE_TEXT = (*encoder_kinds(), LANGUAGE_MODELING)


@global_mesh(None)
def record_text(
    workdir: str | pathlib.Path,
    sentence: str,
    *,
    weights: str | int = "auto",
) -> AttentionView:
    """Reads a text and records the attention weights of every layer and head.

    Args:
      workdir: The run directory of an encoder, such as a classifier, or of a language model.
      sentence: The text. A classifier also gives its label.
      weights: Checkpoint; see :func:`~jaxformer.load_model`.

    Raises:
      UserError: The text is longer than the model allows, or the workdir is of another kind.
    """
    trained = TrainedModel.load(workdir, weights=weights, kinds=ONE_TEXT)
    config = trained.config
    tokenizer = trained.tokenizer

    is_decoder = config.kind is LANGUAGE_MODELING
    if is_decoder:
        ids = Generator(config, trained.params, tokenizer).prompt_ids(sentence)
    else:
        ids = [*tokenizer.encode_batch([sentence])[0], EOS]
    # Spaces and line breaks become visible.
    visible = {ord(" "): "▁", ord("\n"): "↵"}
    pieces = [tokenizer.piece(token).translate(visible) for token in ids]

    network = config.kind.build(config.model)
    apply = jax.jit(network.apply, static_argnames="mutable")
    variables = {"params": trained.params}
    output, recorded = apply(variables, jnp.asarray([ids]), mutable="intermediates")
    weights_of_layers = jax.device_get(
        recorded_weights(
            network,
            recorded,
            stack="decoder" if is_decoder else "encoder",
            sublayer="self_attention",
        )
    )[:, 0]  # [L, H, T, T]

    if is_decoder:
        return AttentionView(
            sentence=sentence,
            translation="",
            source=[],
            target=pieces,
            decoder=weights_of_layers,
        )

    label = ""
    if config.kind is CLASSIFICATION:
        label = tokenizer.symbols[output.argmax()]
    return AttentionView(
        sentence=sentence,
        translation=label,
        source=pieces,
        target=[],
        encoder=weights_of_layers,
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

    (decoded,) = translator.translate_ids([source], n_best=1)
    translation = decoded.tokens[0] if decoded.tokens else []
    target = [BOS, *translation[:-1]]  # decoder inputs: the token at t predicts token t + 1

    member = translator.models.experts[0]
    apply = jax.jit(member.model.apply, static_argnames="mutable")
    _, recorded = apply(
        {"params": member.params},
        jnp.asarray([source], jnp.int32),
        jnp.asarray([target], jnp.int32),
        mutable="intermediates",
    )

    def weights(stack: str, sublayer: str) -> Float[np.ndarray, "L H T S"]:
        found = recorded_weights(member.model, recorded, stack=stack, sublayer=sublayer)
        return np.asarray(found)[:, 0]

    tokenizer = translator.tokenizer
    return AttentionView(
        sentence=sentence,
        translation=translator.detokenize(translation),
        source=[tokenizer.piece(token) for token in source],
        target=[tokenizer.piece(token) for token in target],
        encoder=weights("encoder", "self_attention"),
        decoder=weights("decoder", "self_attention"),
        cross=weights("decoder", "cross_attention"),
    )
