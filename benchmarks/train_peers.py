"""A peer of ``train.py``: takes a training step for every line it is sent.

``train.py`` starts it, in an interpreter that has torch and transformers: with the name of the
system, and the sizes as JSON. On a GPU it is what PyTorch's users would run there: torch.compile,
Adam in one kernel, and for float32 the matrix units that JAX uses by default too.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import transformers

from train import serve

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Builds the system that the command line names, and serves it."""
    name, size = sys.argv[1], json.loads(sys.argv[2])
    library, dtype = name.split()
    torch.manual_seed(0)
    torch.set_default_device(DEVICE)
    torch.set_float32_matmul_precision("high")
    features = {"torch": torch_features, "huggingface": huggingface_features}[library](size)
    serve((training_step(features, size, dtype), versions))


def versions() -> dict[str, Any]:
    """Of the libraries."""
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def torch_features(size: dict[str, int]) -> tuple[torch.nn.Module, Callable]:
    """nn.Transformer, an embedding that is shared, and a function to their logits."""
    layers = size["num_layers"]
    module = torch.nn.ModuleDict(
        {
            "embedding": torch.nn.Embedding(size["vocab_size"], size["d_model"]),
            "transformer": torch.nn.Transformer(
                size["d_model"], size["num_heads"], layers, layers, size["d_ff"], 0.1,
                batch_first=True,
            ),
        }
    )  # fmt: skip
    embedding, transformer = module["embedding"], module["transformer"]
    mask = transformer.generate_square_subsequent_mask(size["length"])

    def logits(src: torch.Tensor, tgt_in: torch.Tensor) -> torch.Tensor:
        features = transformer(embedding(src), embedding(tgt_in), tgt_mask=mask, tgt_is_causal=True)
        return features @ embedding.weight.T

    return module, logits


def huggingface_features(size: dict[str, int]) -> tuple[torch.nn.Module, Callable]:
    """Marian, which shares its embedding too, and a function to its logits."""
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "layers": size["num_layers"],
            "attention_heads": size["num_heads"],
            "ffn_dim": size["d_ff"],
        }.items()
    }
    config = transformers.MarianConfig(
        vocab_size=size["vocab_size"], d_model=size["d_model"], **sides, dropout=0.1,
        activation_function="relu", max_position_embeddings=1024, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    module = transformers.MarianMTModel(config).train()

    def logits(src: torch.Tensor, tgt_in: torch.Tensor) -> torch.Tensor:
        return module(input_ids=src, decoder_input_ids=tgt_in).logits

    return module, logits


def training_step(
    system: tuple[torch.nn.Module, Callable], size: dict[str, int], dtype: str
) -> Callable[[], None]:
    """A function that takes one step."""
    module, logits_of = system
    optimizer = torch.optim.Adam(
        module.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=DEVICE == "cuda" or None
    )
    shape = (3, size["rows"], size["length"])
    src, tgt_in, tgt_out = torch.randint(4, size["vocab_size"], shape).unbind()

    def loss_of(src: torch.Tensor, tgt_in: torch.Tensor, tgt_out: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = logits_of(src, tgt_in)
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), tgt_out.flatten(), label_smoothing=0.1
        )

    if DEVICE == "cuda":
        loss_of = torch.compile(loss_of)

    def step() -> None:
        loss = loss_of(src, tgt_in, tgt_out)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    return step


if __name__ == "__main__":
    main()
