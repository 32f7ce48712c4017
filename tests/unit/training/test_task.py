from jaxformer.config import Config, TrainingConfig
from jaxformer.nn.backend import backend_for, use_backend
from jaxformer.tasks.translation import TranslationLoss
from jaxformer.training.task import cached_by_function


class Bound:
    def loss(self):
        pass


def test_equal_losses_share_what_is_made_of_them_for_each_backend():
    make = cached_by_function(lambda loss, number: object())
    loss = TranslationLoss.of(Config())
    equal = TranslationLoss.of(Config(training=TrainingConfig(steps=7, seed=3)))
    other = TranslationLoss.of(Config(training=TrainingConfig(label_smoothing=0.2)))

    made = make(loss, 1)
    assert make(equal, 1) is made
    with use_backend(backend_for("tpu")):
        assert make(loss, 1) is not made
    assert make(loss, 2) is not made
    assert make(other, 1) is not made

    task = Bound()
    assert make(task.loss, 1) is not make(task.loss, 1)  # a method would keep its task alive
