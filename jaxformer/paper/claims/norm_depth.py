"""Accuracy after training shallow and deep stacks, with the norm after or before the sub-layer."""

from typing import Any

from jaxformer.paper.claims.small_runs import RIGHT, Experiment, Setting
from jaxformer.paper.claims.small_tasks import Echo, decoder

DEPTHS = (6, 24, 100)
WARMUP = 100
STEPS = 200
TASK = Echo()


def by_depth(warmup: int, **changes: Any) -> dict[int, Setting]:
    settings = {}
    for depth in DEPTHS:
        # Layers as a loop: 100 unrolled layers would take minutes to compile.
        network = decoder(
            TASK,
            remat="layer",
            d_model=32,
            d_ff=64,
            num_layers=depth,
            **changes,
        )
        settings[depth] = Setting(network=network, task=TASK, steps=STEPS, warmup=warmup)
    return settings


SETTINGS = {
    "norm after, no warm-up": by_depth(0, norm_position="post"),
    "norm after, warm-up": by_depth(WARMUP, norm_position="post"),
    "norm first, no warm-up": by_depth(0),
    "norm first, warm-up": by_depth(WARMUP),
    "norm after, DeepNorm": by_depth(WARMUP, norm_position="post", depth_scaling="deepnorm"),
}

CLAIM = Experiment(
    about=(
        f"Decoders of d_model = 32 learn to repeat the token before, in rows of {TASK.length} "
        f"random tokens of {TASK.vocab_size}; guessing gives {100 / TASK.vocab_size:.0f}. "
        f"{SETTINGS['norm after, warm-up'][6].describe()}, or without any; DeepNorm with it."
    ),
    x_label="layers",
    column="{} layers",
    settings=SETTINGS,
    measures=[RIGHT],
    log_x=10,
).as_claim("norm_depth", place=15, says="Deep stacks train only with the norm first.")
