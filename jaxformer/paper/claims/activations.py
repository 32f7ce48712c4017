"""The loss of small language models while they are trained, by activation."""

import dataclasses

from jaxformer.nn.feed_forward import Activation
from jaxformer.paper.claims.small_runs import TEST_LOSS, Curves
from jaxformer.paper.claims.small_tasks import ABOUT_TEXT, text_setting

ACTIVATIONS: dict[str, Activation] = {
    "ReLU": "relu",
    "GELU": "gelu_exact",
    "Swish": "swish",
    "tanh": "tanh",
}
TESTS = 5

SETTINGS = {}
for name, activation in ACTIVATIONS.items():
    setting = text_setting(activation=activation)
    SETTINGS[name] = {setting.steps: dataclasses.replace(setting, tests=TESTS)}

CLAIM = Curves(
    about=ABOUT_TEXT,
    x_label="steps",
    column="{} steps",
    settings=SETTINGS,
    measures=[TEST_LOSS],
    seeds=5,
    log_x=None,
).as_claim("activations", place=45, says="GELU is better than ReLU.")
