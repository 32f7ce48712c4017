"""The loss of small language models by the inner width of their feed-forward networks."""

from jaxformer.paper.claims.small_runs import TEST_LOSS, Experiment
from jaxformer.paper.claims.small_tasks import ABOUT_TEXT, text_setting

WIDTH = 32
# For each ratio d_ff / d_model, the d_model with about as many parameters in all.
EQUAL_WIDTHS = {1: 44, 2: 38, 4: 32, 8: 26}

SAME_WIDTH = {}
SAME_SIZE = {}
for ratio, width in EQUAL_WIDTHS.items():
    SAME_WIDTH[ratio] = text_setting(d_model=WIDTH, d_ff=ratio * WIDTH, num_heads=2)
    SAME_SIZE[ratio] = text_setting(d_model=width, d_ff=ratio * width, num_heads=2)

CLAIM = Experiment(
    about=(
        f"{ABOUT_TEXT} Here with 2 heads. As many parameters in all, within 7 %: d_model = "
        f"{', '.join(map(str, EQUAL_WIDTHS.values()))}."
    ),
    x_label="d_ff / d_model",
    column="d_ff = {} d_model",
    settings={
        f"d_model = {WIDTH}": SAME_WIDTH,
        "as many parameters in all": SAME_SIZE,
    },
    measures=[TEST_LOSS],
).as_claim("inner_width", place=46, says="The inner width must be four times d_model.")
