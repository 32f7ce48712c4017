"""Parameter counts against the model's own, and traffic in cases computed by hand.

tests/integration/test_communication.py compares the rest with the compiled program.
"""

import jax
import pytest

from jaxformer.analysis.communication import count_parameters, step_traffic
from jaxformer.config import Config, MeshConfig, ModelConfig
from jaxformer.inference.weights import abstract_params
from jaxformer.models.selection import describe_model
from jaxformer.nn import ParameterInfo

SIZES = {"vocab_size": 29, "d_model": 12, "d_ff": 20, "num_heads": 4, "num_layers": 3}


@pytest.mark.parametrize(
    "changes",
    [
        {"d_k": 3, "d_v": 5, "biases": True},
        {"embeddings": "separate", "target_vocab_size": 7, "biases": True, "norm_position": "pre"},
        {"embeddings": "separate", "positions": "learned"},
    ],
)
def test_parameter_counts_match_the_model(changes):
    config = ModelConfig(**SIZES | {"max_length": 50} | changes)
    params = abstract_params(config)
    split = {"matrices": 0, "tables": 0, "vectors": 0}
    info = jax.tree.leaves(
        describe_model(config), is_leaf=lambda node: isinstance(node, ParameterInfo)
    )
    for leaf, facts in zip(jax.tree.leaves(params), info, strict=True):
        kinds = {"table": "tables", "matrix": "matrices", "vector": "vectors"}
        split[kinds[facts.role]] += leaf.size
    assert count_parameters(config)._asdict() == split | {
        "source": config.vocab_size * 12,
        "target": (config.target_vocab_size or 29) * 12,
    }


def test_bfloat16_halves_the_bytes_of_matmuls():
    mesh = MeshConfig(data=1, fsdp=2, tensor=2)
    wide, narrow = (
        step_traffic(Config(model=ModelConfig(**SIZES, compute_dtype=dtype), mesh=mesh), 8, 5, 7)
        for dtype in ("float32", "bfloat16")
    )
    matrices = count_parameters(ModelConfig(**SIZES)).matrices
    assert wide["fsdp"].gathered - narrow["fsdp"].gathered == 2 * 2 * matrices / 2
    assert wide["fsdp"].scattered == narrow["fsdp"].scattered
    # Per layer 8 sums of 4 * 5 source positions and 8 of 4 * 7 target positions; one for the loss.
    activations = 12 * (3 * 8 * 4 * 5 + (3 * 8 + 1) * 4 * 7)
    assert wide["tensor"].summed - narrow["tensor"].summed == 2 * activations
