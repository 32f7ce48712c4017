"""Model cards: README.md beside the files of a model."""

import hashlib
import json

import jax

from jaxformer.config import DataConfig, ModelConfig
from jaxformer.inference.parameter_arrays import params_sha256
from jaxformer.inference.weights import TrainedModel
from jaxformer.interop.formats import Usage
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.version import __version__

UNKNOWN = "(please fill in)"
_CARD = """# {name}

{model}, exported by jaxformer {version} as {format}.

| | |
|---|---|
{facts}

## Use

{use}

{notes}

## Configuration

```json
{config}
```
"""


def write_card(
    model: TrainedModel,
    name: str,
    usage: Usage,
    *,
    use: str,
    facts: dict[str, str],
) -> str:
    """Returns the card of a model.

    Args:
      model: The model.
      name: Title of the card.
      usage: Description of the format.
      use: Text on how to load the model.
      facts: Facts by name, from :func:`facts_of_model`.
    """
    description = model.config.kind.description.capitalize()
    if model.config.model.architecture == ModelConfig.architecture:
        description = 'A Transformer as in "Attention Is All You Need" (Vaswani et al. 2017)'

    config = model.config.to_dict()
    return _CARD.format(
        name=name,
        model=description,
        version=__version__,
        format=usage.format,
        facts="\n".join(f"| {key} | {value} |" for key, value in facts.items()),
        use=use,
        notes="\n".join(f"- {note}" for note in usage.notes),
        config=json.dumps({key: config[key] for key in ("model", "search")}, indent=2),
    )


def languages_of(model: TrainedModel) -> tuple[str, ...]:
    """Returns the source and the target language of a translator; nothing for other models."""
    data = model.config.data
    if model.config.kind is TRANSLATION and isinstance(data, DataConfig):
        return data.source_language, data.target_language
    return ()


def facts_of_model(model: TrainedModel) -> dict[str, str]:
    """Returns what is known about a model; the author has to fill in the rest."""
    arrays = jax.tree.leaves(model.params)
    num_parameters = sum(array.size for array in arrays)
    facts = {
        "languages": " to ".join(languages_of(model)) or UNKNOWN,
        "license": UNKNOWN,
        "training data": UNKNOWN,
        "parameters": f"{num_parameters:,}",
        "checkpoint": model.weights,
        "SHA-256 of the parameters": params_sha256(model.params),
    }

    tokenizer = model.tokenizer_file
    if tokenizer is not None:
        facts["SHA-256 of the tokenizer"] = hashlib.sha256(tokenizer).hexdigest()
    return facts


def code_block(usage: Usage, place: str) -> str:
    """Returns the code that uses a model, and what it needs."""
    return f"`pip install {usage.requires}`, then{place}:\n\n```python\n{usage.code.strip()}\n```"
