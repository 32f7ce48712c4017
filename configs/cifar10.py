"""CIFAR-10: a Vision Transformer from scratch on pictures of 32 by 32 pixels, for a GPU.

    python train.py --config=configs/cifar10.py --workdir=runs/cifar10

TensorFlow Datasets reads the pictures after it has prepared them, which needs TensorFlow
(``pip install '.[wmt]'``):
``tfds.builder("cifar10", file_format="array_record").download_and_prepare()``.
Measured: nothing; it has not been run.
"""

from jaxformer.config import Config, ImagesConfig, TrainingConfig, select
from jaxformer.models.vit import ViTConfig

CIFAR10 = Config(
    model=ViTConfig(
        height=32,
        width=32,
        patch_size=4,
        num_classes=10,
        pooling="mean",
        d_model=384,
        d_ff=768,
        num_heads=6,
        num_layers=7,
        dropout_rate=0.1,
        compute_dtype="bfloat16",
    ),
    data=ImagesConfig(
        corpus="tfds_images",
        builder="cifar10",
        rows=512,
        shift=3.0,
        rotation=10.0,
        zoom=0.15,
        flip=True,
    ),
    training=TrainingConfig(
        steps=20_000,
        warmup_steps=500,
        learning_rate=1e-3,
        schedule="cosine",
        weight_decay=0.05,
        eval_every=1000,
        checkpoint_every=1000,
        best_metric="accuracy",
    ),
)


def get_config(variant: str = ""):
    """Returns the config, for ``--config=configs/cifar10.py``."""
    return select({"": CIFAR10}, variant)
