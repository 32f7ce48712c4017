"""Accuracy with the true tokens as inputs and with a decoder's own, in training and in tests."""

import jax
from jaxtyping import Array

from jaxformer.paper.claims.small_runs import (
    RIGHT,
    Batch,
    Curves,
    Inputs,
    Network,
    Setting,
    true_inputs,
)
from jaxformer.paper.claims.small_tasks import Sums, decoder

TASK = Sums()
TESTS = 5


def own_inputs(network: Network, batch: Batch) -> Batch:
    """Replaces the tokens after the given ones by what the network predicts, greedily."""

    def predict(place: Array, tokens: Array) -> Array:
        predicted = network(tokens)[:, place - 1].argmax(axis=-1)
        return tokens.at[:, place].set(predicted)

    tokens = jax.lax.fori_loop(TASK.terms, batch.tokens.shape[1], predict, batch.tokens)
    return batch._replace(tokens=tokens)


def setting(train_inputs: Inputs, test_inputs: Inputs) -> Setting:
    return Setting(
        network=decoder(TASK),
        task=TASK,
        steps=1000,
        learning_rate=3e-3,
        warmup=50,
        train_inputs=train_inputs,
        test_inputs=test_inputs,
        tests=TESTS,
    )


WAYS = {
    "trained and tested on the truth": setting(true_inputs, true_inputs),
    "trained on the truth, tested alone": setting(true_inputs, own_inputs),
    "trained and tested alone": setting(own_inputs, own_inputs),
}

CLAIM = Curves(
    about=(
        f"Decoders continue rows of {TASK.length + 1} digits, each the sum of the {TASK.terms} "
        "before, modulo 10. The first three are given; the decoder reads the true digits after "
        "them, or alone, its own. "
        f"Two layers, d_model = 32; {WAYS['trained and tested alone'].describe()}."
    ),
    x_label="steps",
    column="{} steps",
    settings={line: {way.steps: way} for line, way in WAYS.items()},
    measures=[RIGHT],
    log_x=None,
).as_claim(
    "free_running",
    place=101,
    says="Teacher forcing trains fast, and its models suffer from their own mistakes.",
)
