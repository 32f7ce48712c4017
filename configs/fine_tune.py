"""Further training of a model on your own pairs; by default, of the model that comes along.

    python train.py --config=configs/fine_tune.py --workdir=runs/fine_tune \
        --config.data.train=my/train

``my/train.en`` and ``my/train.de`` have one sentence per line. Layers, tokenizer and languages come
from ``training.init_from``, which is any workdir; steps, batch and learning rate follow from the
text. docs/fine_tuning.md describes how a model keeps what it knew.

Measured: with 3,000 captions of Multi30k and a model that had seen none, 27.1 instead of 17.8
sacreBLEU on captions of another file, and 32.1 instead of 45.7 on the text that the model had
learned from. With the captions ten times beside all of that text, 25.1 and 45.4, and 37.7 instead
of 20.6 on held-out captions.
"""

from jaxformer.config import Config, DataConfig, ModelConfig, TrainingConfig, select
from jaxformer.tasks.further_training import fit_to_model

# adapt_config replaces the layers, the languages, the batch, the steps and the learning rate.
FINE_TUNE = Config(
    model=ModelConfig(compute_dtype="bfloat16"),
    data=DataConfig(
        corpus="text",
        train="",  # your own: --config.data.train=my/train
        valid="5%",
        batching="packing",
        tokens_per_batch=2048,
        max_length=128,
    ),
    training=TrainingConfig(
        init_from="pretrained",
        steps=200,
        warmup_steps=1,
        eval_on_start=True,
        learning_rate=1e-3,
        optimizer="muon",
        schedule="linear",
    ),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/fine_tune.py``."""
    return select({"": FINE_TUNE}, variant)


def adapt_config(config: Config, variant: str, given):
    """Returns the config after the overrides of the ``given`` fields."""
    return fit_to_model(config, given)
