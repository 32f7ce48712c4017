"""Model cards: the README.md of an export."""

import json
from typing import NamedTuple

import jax

from jaxformer.config import DataConfig
from jaxformer.inference.weights import TrainedModel, params_sha256
from jaxformer.kinds import TRANSLATION
from jaxformer.runs.workdir import sha256_of
from jaxformer.version import __version__

_CARD = """# {name}

A Transformer as in "Attention Is All You Need" (Vaswani et al. 2017), exported by jaxformer {version} as {format}.

| | |
|---|---|
{facts}

## Use

`pip install {requires}`, then, in this folder:

```python
{code}
```

{notes}

## Configuration

```json
{config}
```
"""  # noqa: E501


class Usage(NamedTuple):
    """Description of a format for the model card.

    Attributes:
      format: Name of the format.
      requires: Packages that the code imports.
      code: Python that loads the model, to be run in the folder of the export.
      notes: Sentences on the files, on differences from the original, and on limits.
    """

    format: str
    requires: str
    code: str
    notes: tuple[str, ...]


def model_card(model: TrainedModel, name: str, usage: Usage) -> str:
    """Returns the text of a model card with this name as its title, in Markdown."""
    config, data = model.config.to_dict(), model.config.data
    languages = "(please fill in)"
    if model.config.kind is TRANSLATION and isinstance(data, DataConfig):
        languages = f"{data.source_language} to {data.target_language}"
    facts = {
        "languages": languages,
        "license": "(please fill in)",
        "training data": "(please fill in)",
        "parameters": f"{sum(array.size for array in jax.tree.leaves(model.params)):,}",
        "checkpoint": model.weights,
        "SHA-256 of the parameters": params_sha256(model.params),
        "SHA-256 of the tokenizer": sha256_of(model.folder.tokenizer),
    }
    return _CARD.format(
        name=name,
        version=__version__,
        format=usage.format,
        facts="\n".join(f"| {key} | {value} |" for key, value in facts.items()),
        requires=usage.requires,
        code=usage.code.strip(),
        notes="\n".join(f"- {note}" for note in usage.notes),
        config=json.dumps({key: config[key] for key in ("model", "search")}, indent=2),
    )
