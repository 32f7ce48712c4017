"""The rows of Table 3: variations of the base model, validated on newstest2013 (section 6.2).

    python train.py --config=configs/table3.py --workdir=runs/table3
    python train.py --config=configs/table3.py:A1 --workdir=runs/table3-A1
    python train.py --config=configs/table3.py:A1,small --workdir=runs/table3-A1-small

A variant is a row: "base", "A1" to "A4", "B1", "B2", "C1" to "C7", "D1" to "D4", "E" or "big". A
scale can follow after a comma: "paper" (WMT14), "small" (all widths divided by 4, layers by 2;
minutes on a CPU) or "smoke" (a few steps). ``python -m jaxformer.paper.table3`` trains all rows and
writes the table; ``jaxformer/paper/table3_rows.py`` has the rows with the paper's figures.

Departs from the paper: matmuls in bfloat16, for current accelerators. The scale "small" also has
400 steps of warm-up, and therefore a peak learning rate of 4.4e-3 at its width instead of 7.0e-4,
packing, pairs of at most 64 tokens, and other data.
Measured: nothing yet at the paper's scale; ``docs/paper.md`` has the scale "small".
"""

from jaxformer.config import select
from jaxformer.paper.table3_rows import ROWS, row_config


def get_config(variant: str = ""):
    """Returns the config, for example for ``--config=configs/table3.py:A1``."""
    row, _, scale = variant.partition(",")
    rows = {name: row_config(name, scale or "paper") for name in ROWS}
    return select({"": rows["base"], **rows}, row)
