"""The model that comes with the package; ``README.md`` beside this file is its card."""

import pathlib

WORKDIR = pathlib.Path(__file__).parent / "tatoeba_en_de"
DESCRIPTION = "English-German model for everyday sentences that comes with jaxformer"
