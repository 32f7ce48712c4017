"""Trains a model: ``python train.py --config=configs/numerals.py --workdir=runs/numerals``.

The same as ``jaxformer train``, which needs no clone; ``--help`` describes both.
"""

import sys

from jaxformer.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
