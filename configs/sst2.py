"""Sentiment of sentences from film reviews: 6,920 labeled sentences, an encoder from scratch.

    python train.py --config=configs/sst2.py --workdir=runs/sst2
    jaxformer classify --workdir runs/sst2 --labeled data/sst2/stsa.binary.dev --baselines

The files are below ``JAXFORMER_DATA``, with a label, a space and a sentence on each line.
Measured: 78.3 % of the 872 validation sentences on average over five seeds, from 76.7 to 80.3;
naive Bayes on words and pairs of words reaches 79.5 %. Two minutes on two shared CPU cores.
The variant ``sst2.py:minilm`` begins with MiniLM, a pretrained BERT: 88.3 % after three epochs, the
mean of five seeds, from 87.6 to 89.1, in bfloat16 (docs/classification.md).
"""

import dataclasses

from jaxformer.config import Config, EncoderConfig, LabeledConfig, TrainingConfig, select
from jaxformer.files import data_directory
from jaxformer.models.bert import BertConfig

DATA = data_directory()

SST2 = Config(
    model=EncoderConfig(
        vocab_size=8000,
        d_model=256,
        d_ff=512,
        num_heads=4,
        num_layers=1,
        dropout_rate=0.5,
        norm_position="pre",
        activation="gelu",
        max_length=128,
    ),
    data=LabeledConfig(
        train=f"{DATA}/sst2/stsa.binary.train",
        valid=f"{DATA}/sst2/stsa.binary.dev",
        tokens_per_batch=2048,
        max_length=100,
    ),
    training=TrainingConfig(
        steps=600,
        warmup_steps=100,
        learning_rate=5e-4,
        schedule="linear",
        weight_decay=0.1,
        eval_every=100,
        checkpoint_every=100,
        keep_checkpoints=3,
        best_metric="accuracy",
    ),
)

# MiniLM (Wang et al. 2020), imported to runs/minilm; see docs/classification.md.
# Measured: 88.3 % of the validation sentences, the mean of five seeds, from 87.6 to 89.1; a run
# takes five minutes of one core of an Intel Xeon with AMX, or ten beside other work.
MINILM = Config(
    model=BertConfig(
        vocab_size=30_522,
        d_model=384,
        d_ff=1536,
        num_heads=12,
        num_layers=6,
        compute_dtype="bfloat16",
    ),
    data=dataclasses.replace(SST2.data, tokens_per_batch=1024),
    training=TrainingConfig(
        init_from="runs/minilm",
        steps=570,
        warmup_steps=60,
        learning_rate=1e-4,
        schedule="linear",
        weight_decay=0.01,
        label_smoothing=0.0,
        eval_every=190,
        checkpoint_every=190,
        keep_checkpoints=1,
        best_metric="accuracy",
    ),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/sst2.py``."""
    return select({"": SST2, "minilm": MINILM}, variant)
