"""The model that comes with the package; ``README.md`` beside this file is its card."""

import pathlib

# Its name on the command line and as training.init_from.
NAME = "pretrained"
WORKDIR = pathlib.Path(__file__).parent / "tatoeba_en_de"
DESCRIPTION = "English-German model for everyday sentences that comes with jaxformer"
