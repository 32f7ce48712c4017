"""The loss of small language models with one to 32 heads, whose size shrinks or stays."""

from jaxformer.paper.claims.small_runs import TEST_LOSS, Experiment, Setting
from jaxformer.paper.claims.small_tasks import ABOUT_TEXT, text_setting

HEADS = (1, 4, 16, 32)
HEAD_SIZE = 8


def by_heads(head_size: int | None) -> dict[int, Setting]:
    settings = {}
    for heads in HEADS:
        settings[heads] = text_setting(num_heads=heads, d_k=head_size, d_v=head_size)
    return settings


CLAIM = Experiment(
    about=ABOUT_TEXT,
    x_label="heads",
    column="heads: {}",
    settings={
        "d_k = d_model / heads": by_heads(None),
        f"d_k = {HEAD_SIZE}": by_heads(HEAD_SIZE),
    },
    measures=[TEST_LOSS],
).as_claim("many_heads", place=41, says="More heads are better, up to 16.")
