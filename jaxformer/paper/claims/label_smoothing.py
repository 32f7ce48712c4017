"""Perplexity and accuracy of small language models, by label smoothing."""

import dataclasses

import numpy as np

from jaxformer.paper.claims.small_runs import Experiment, Measure, Setting
from jaxformer.paper.claims.small_tasks import ABOUT_TEXT, Text, text_setting

SMOOTHINGS = (0.0, 0.1, 0.2, 0.4)
LITTLE = 10_000


def by_smoothing(task: Text) -> dict[float, Setting]:
    setting = text_setting(task)
    return {each: dataclasses.replace(setting, label_smoothing=each) for each in SMOOTHINGS}


CLAIM = Experiment(
    about=ABOUT_TEXT,
    x_label="label smoothing",
    column="smoothing {}",
    settings={
        f"{Text.train_size:,} characters": by_smoothing(Text()),
        f"{LITTLE:,} characters": by_smoothing(Text(train_size=LITTLE)),
    },
    measures=[
        Measure("perplexity of new text", lambda course: np.exp(course.test_loss[:, -1]), ".2f"),
        Measure("right characters, %", lambda course: 100 * course.right[:, -1], ".1f"),
    ],
    log_x=None,
).as_claim("label_smoothing", place=106, says="Label smoothing hurts perplexity and helps BLEU.")
