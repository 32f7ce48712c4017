"""A small Transformer on Multi30k English-German captions: 29,000 pairs, a GPU or two CPU cores.

    export JAXFORMER_DATA=$PWD/data
    jaxformer data multi30k
    python train.py --config=configs/multi30k.py --workdir=runs/multi30k
    jaxformer evaluate --workdir runs/multi30k --source data/multi30k/test_2016_flickr.en \
        --reference data/multi30k/test_2016_flickr.de

``multi30k.py:wu`` is the recipe of Wu et al. 2021, "Good for Misconceived Reasons": 4 layers of
width 128 with dropout 0.3. The default is wider, with rotary positions, Muon, R-Drop and a linear
schedule. ``docs/data.md`` has origin and license of the corpus.
Measured: 42.65 lowercased tokenized BLEU (42.26 sacreBLEU) on test_2016_flickr, the mean of three
seeds, trained on a GPU. By the time of its first steps, two CPU cores would take 85 minutes, with
the settings of ``docs/multi30k.md``, which also has each run.
"""

import dataclasses

from jaxformer.config import (
    Config,
    DataConfig,
    ModelConfig,
    TrainingConfig,
    select,
)
from jaxformer.files import data_directory
from jaxformer.search import BeamSearch

DATA = data_directory()

# The recipe of Wu et al. 2021 for Transformer-Tiny, as in the authors' code. Moses'
# tokenizer splits words, and the vocabulary is joint: 9,304 of its tokens occur (theirs: 9,708).
# They used two GPUs with 4,096 tokens each; an epoch has about 55 steps. docs/multi30k.md has the
# scores: 41.35 lowercased tokenized BLEU on test_2016_flickr, the mean of three seeds (41.02).
WU = Config(
    model=ModelConfig(
        vocab_size=9968,
        d_model=128,
        d_ff=256,
        num_heads=4,
        num_layers=4,
        dropout_rate=0.3,
        biases=True,
        norm_epsilon=1e-5,
        max_length=256,
    ),
    data=DataConfig(
        corpus="text",
        train=f"{DATA}/multi30k/train",
        valid=f"{DATA}/multi30k/val",
        pretokenizer="moses",
        lowercase=True,
        tokens_per_batch=8192,
        max_length=250,
    ),
    training=TrainingConfig(
        steps=8000,
        warmup_steps=2000,
        learning_rate=5e-3,
        clip_norm=25.0,
        checkpoint_every=55,
        eval_every=55,
        eval_sentences=0,
        keep_checkpoints=10,
        best_metric="loss",
        patience=10,
    ),
    search=BeamSearch(beam_size=5, penalty="power", length_penalty=1.0, max_length=200),
)

MULTI30K = dataclasses.replace(
    WU,
    model=dataclasses.replace(
        WU.model, d_model=192, d_ff=512, positions="rotary", compute_dtype="bfloat16"
    ),
    data=dataclasses.replace(WU.data, lowercase=False, batching="packing", max_length=64),
    training=dataclasses.replace(
        WU.training,
        steps=3000,
        warmup_steps=500,
        schedule="linear",
        optimizer="muon",
        weight_decay=0.05,
        consistency=2.0,
        checkpoint_every=100,
        eval_every=500,
        keep_checkpoints=5,
        patience=0,
    ),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/multi30k.py`` or ``multi30k.py:wu``."""
    return select({"": MULTI30K, "wu": WU}, variant)
