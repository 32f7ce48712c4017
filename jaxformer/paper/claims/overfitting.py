"""The loss of shallow and deep language models on little text, in training and on new text."""

import dataclasses

from jaxformer.paper.claims.small_runs import TEST_LOSS, Curves, Measure
from jaxformer.paper.claims.small_tasks import ABOUT_TEXT, Text, text_setting

DEPTHS = (1, 2, 4, 8)
TASK = Text(train_size=10_000)
TESTS = 5

SETTINGS = {}
for depth in DEPTHS:
    setting = text_setting(TASK, num_layers=depth)
    SETTINGS[f"layers: {depth}"] = {setting.steps: dataclasses.replace(setting, tests=TESTS)}

CLAIM = Curves(
    about=f"{ABOUT_TEXT} Here the first {TASK.train_size:,} characters only.",
    x_label="steps",
    column="{} steps",
    settings=SETTINGS,
    measures=[
        TEST_LOSS,
        Measure("loss in training, nats", lambda course: course.train_loss[:, -1], ".3f"),
    ],
    log_x=None,
).as_claim("overfitting", place=110, says="Deep models overfit little data.")
