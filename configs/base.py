"""The paper's base model on WMT14 English-German (sections 5 and 6.1; Table 2: 27.3 BLEU).

    python train.py --config=configs/base.py --workdir=runs/base
    jaxformer average --workdir runs/base --last 5
    jaxformer evaluate --workdir runs/base --source newstest2014.en \
        --reference newstest2014.de --output runs/base/newstest2014.de

docs/reproduce.md has all of it: data, hashes, expected figures, what it takes.

The corpus is read from TensorFlow Datasets; when it is not there, the run says how to get it. Your
own parallel text, in the files ``my/train.en`` and ``my/train.de``, needs no other config:

    python train.py --config=configs/base.py --workdir=runs/mine --config.data.corpus=text \
        --config.data.train=my/train --config.data.valid=my/valid

The variant ``configs/base.py:tiny`` is a model for a CPU, to try out a corpus.

Departs from the paper: matrix products in bfloat16, which today's accelerators are built for.
Measured: 37 ms a step on one H100, for 30 steps with 32,000 pieces and sentences of 256 tokens; no
whole run yet. The paper's took 12 hours on 8 P100 GPUs, 0.4 s a step.
"""

from jaxformer.config import Config, DataConfig, ModelConfig, TrainingConfig, select

BASE = Config(model=ModelConfig(compute_dtype="bfloat16"))

TINY = Config(
    model=ModelConfig(vocab_size=8000, d_model=128, d_ff=256, num_heads=4, num_layers=2),
    data=DataConfig(tokens_per_batch=2048, max_length=128),
    training=TrainingConfig(steps=4000, warmup_steps=1000, checkpoint_every=500, eval_every=500),
)


def get_config(variant: str = ""):
    """The experiment, for ``--config=configs/base.py`` or ``--config=configs/base.py:tiny``."""
    return select({"": BASE, "tiny": TINY}, variant)
