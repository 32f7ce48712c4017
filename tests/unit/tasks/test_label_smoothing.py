"""Label smoothing changes the loss of every kind of experiment, or is refused by name."""

import jax
import pytest

from jaxformer.config import Config, TrainingConfig
from jaxformer.errors import UserError
from jaxformer.kinds.kind import Kind
from jaxformer.kinds.model_parameters import make_init
from jaxformer.kinds.selection import known_kinds
from jaxformer.tasks.token_task import task_class
from jaxformer.training.mesh import make_mesh
from jaxformer.training.placement import BatchShards

# Fields of sections that a kind needs, by the value of data.corpus.
MODELS = {
    "squad": {"heads": "spans", "num_classes": 0},
    "tagged": {"num_tags": 3},
    "choices": {"heads": "pooler choice", "num_classes": 0},
    "scored": {"heads": "pooler score", "num_classes": 0},
    "interleaved": {"num_layers": 4},
    "unlabeled_speech": {"head": "contrast", "mask_rate": 0.5},
}
DATA = {"masked": {"mask_rate": 0.15}}
NEITHER_CLASSES_NOR_TOKENS = {"scored", "image_text", "speech", "unlabeled_speech"}


def config_of(kind: Kind, label_smoothing: float) -> Config:
    """Returns a config of the default model of a kind, with few layers."""
    corpus = kind.corpora[0]
    section = kind.networks[0].section
    model = section(**{"num_layers": 2, **MODELS.get(corpus, {})})
    data = kind.data(**{"corpus": corpus, **DATA.get(corpus, {})})
    training = TrainingConfig(label_smoothing=label_smoothing)
    return Config(model=model, data=data, training=training)


def lowered_loss(config: Config) -> str:
    """Returns the program of the loss of the longest batch."""
    task = task_class(config)
    loss = task.loss_class.of(config)
    init = make_init(config.model, config.kind)
    params = jax.eval_shape(init, jax.random.key(0))
    shards = BatchShards.of(make_mesh(devices=jax.devices()[:1]), 1)
    batch = task.longest_batch(config, shards)
    program = jax.jit(lambda params, batch: loss(params, batch, None))
    return program.lower(params, batch).as_text()


@pytest.mark.parametrize("kind", known_kinds(), ids=lambda kind: kind.corpora[0])
def test_label_smoothing_changes_the_loss_or_is_refused(kind):
    without = config_of(kind, 0.0)
    smoothed = config_of(kind, 0.2)
    if kind.corpora[0] in NEITHER_CLASSES_NOR_TOKENS:
        task_class(without).loss_class.of(without)
        message = (
            rf"label_smoothing is for classes and tokens, not for {kind.description}: got 0\.2"
        )
        with pytest.raises(UserError, match=message):
            task_class(smoothed).loss_class.of(smoothed)
        return

    assert lowered_loss(smoothed) != lowered_loss(without)
