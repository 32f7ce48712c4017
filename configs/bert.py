"""Fine-tuning a BERT of Hugging Face: answers to questions, tags, pairs, numbers or choices.

    jaxformer import hf google-bert/bert-base-uncased --workdir runs/base-bert
    python train.py --config=configs/bert.py --workdir=runs/bert --config.data.train=train-v1.1.json

The default is for questions as in SQuAD. Variants are ``bert.py:tags``, of names as in CoNLL 2003,
``bert.py:pairs``, of entailment as in MNLI, ``bert.py:score``, of similarity as in STS-B, and
``bert.py:choice``, as in SWAG; docs/classification.md shows the files of each. Settings are as in
Devlin et al. 2019, for BERT-base. Measured: nothing; they have not been run.
"""

import dataclasses

from jaxformer.config import AnnotatedConfig, Config, TrainingConfig, select
from jaxformer.models.bert import BertConfig

SQUAD = Config(
    model=BertConfig(heads="spans", num_classes=0),
    data=AnnotatedConfig(
        corpus="squad",
        tokens_per_batch=12 * 384,
    ),
    training=TrainingConfig(
        init_from="runs/base-bert",
        steps=15_000,
        warmup_steps=1500,
        learning_rate=3e-5,
        schedule="linear",
        weight_decay=0.01,
        label_smoothing=0.0,
        eval_every=3000,
        checkpoint_every=3000,
        keep_checkpoints=1,
        best_metric="f1",
    ),
)


def variant(model: BertConfig, data: AnnotatedConfig, **training) -> Config:
    """Returns the config of another use."""
    settings = {"warmup_steps": training["steps"] // 10, "eval_every": training["steps"] // 3}
    settings |= {"checkpoint_every": settings["eval_every"]}
    return Config(
        model=model,
        data=data,
        training=dataclasses.replace(SQUAD.training, **settings | training),
    )


VARIANTS = {
    "": SQUAD,
    # Of CoNLL 2003: O, and the beginning and the inside of four types.
    "tags": variant(
        BertConfig(heads="", num_classes=0, num_tags=9),
        AnnotatedConfig(corpus="tagged", tokens_per_batch=32 * 128, max_length=128),
        steps=1500,
        learning_rate=5e-5,
    ),
    # Of MNLI: three classes.
    "pairs": variant(
        BertConfig(num_classes=3),
        AnnotatedConfig(corpus="labeled_pairs", tokens_per_batch=32 * 128, max_length=128),
        steps=30_000,
        learning_rate=2e-5,
        best_metric="accuracy",
    ),
    "score": variant(
        BertConfig(heads="pooler score", num_classes=0),
        AnnotatedConfig(corpus="scored", tokens_per_batch=32 * 128, max_length=128),
        steps=900,
        learning_rate=2e-5,
        best_metric="pearson:max",
    ),
    "choice": variant(
        BertConfig(heads="pooler choice", num_classes=0),
        AnnotatedConfig(corpus="choices", tokens_per_batch=16 * 4 * 80, max_length=80),
        steps=13_500,
        learning_rate=2e-5,
        best_metric="accuracy",
    ),
}


def get_config(name: str = ""):
    """Returns the config, for ``--config=configs/bert.py``."""
    return select(VARIANTS, name)
