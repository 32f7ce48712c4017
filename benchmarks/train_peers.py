"""A peer of ``train.py``: takes a training step for every line that it receives.

``train.py`` starts it in an interpreter with torch and transformers, with the name of the system
and the sizes as JSON. On a GPU it uses the usual options of PyTorch: torch.compile, fused Adam, and
for float32 the matrix units that JAX also uses by default.
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
    """Builds the system of the command line, and serves it."""
    name = sys.argv[1]
    size = json.loads(sys.argv[2])
    library, dtype = name.split()
    torch.manual_seed(0)
    torch.set_default_device(DEVICE)
    torch.set_float32_matmul_precision("high")
    models = {
        ("torch", 2): torch_features,
        ("torch", 1): torch_gpt,
        ("huggingface", 2): huggingface_features,
        ("huggingface", 1): huggingface_gpt,
    }
    serve((training_step(models[library, size["sides"]](size), size, dtype), versions))


def versions() -> dict[str, Any]:
    """Returns the versions of the libraries."""
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def torch_features(size: dict[str, int]) -> tuple[torch.nn.Module, Callable]:
    """Returns nn.Transformer with a shared embedding, and a function that computes its logits."""
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
    embedding = module["embedding"]
    transformer = module["transformer"]
    mask = transformer.generate_square_subsequent_mask(size["length"])

    def logits(src: torch.Tensor, tgt_in: torch.Tensor) -> torch.Tensor:
        features = transformer(embedding(src), embedding(tgt_in), tgt_mask=mask, tgt_is_causal=True)
        return features @ embedding.weight.T

    return module, logits


def huggingface_features(size: dict[str, int]) -> tuple[torch.nn.Module, Callable]:
    """Returns Marian, which shares its embedding too, and a function that computes its logits."""
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


class GPTBlock(torch.nn.Module):
    """Pre-norm attention and feed-forward network, as in GPT-2."""

    def __init__(self, d_model: int, d_ff: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(d_model) for _ in range(2)])
        self.projections = torch.nn.Linear(d_model, 3 * d_model, bias=False)
        self.output = torch.nn.Linear(d_model, d_model, bias=False)
        self.inner = torch.nn.Linear(d_model, d_ff)
        self.outer = torch.nn.Linear(d_ff, d_model)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns activations of the same shape, [B, T, D]."""
        heads = self.projections(self.norms[0](x)).unflatten(-1, (3, self.num_heads, -1))
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        attended = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, dropout_p=0.1
        )
        x = x + self.dropout(self.output(attended.transpose(1, 2).flatten(2)))
        inner = torch.nn.functional.gelu(self.inner(self.norms[1](x)), approximate="tanh")
        return x + self.dropout(self.outer(inner))


def torch_gpt(size: dict[str, int]) -> tuple[torch.nn.Module, Callable]:
    """Returns a GPT with a tied embedding, and a function that computes its logits."""
    sizes = size["d_model"], size["d_ff"], size["num_heads"]
    module = torch.nn.ModuleDict(
        {
            "embedding": torch.nn.Embedding(size["vocab_size"], size["d_model"]),
            "positions": torch.nn.Embedding(size["length"], size["d_model"]),
            "dropout": torch.nn.Dropout(0.1),
            "blocks": torch.nn.Sequential(*[GPTBlock(*sizes) for _ in range(size["num_layers"])]),
            "norm": torch.nn.LayerNorm(size["d_model"]),
        }
    )

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        x = module["dropout"](module["embedding"](tokens) + module["positions"].weight)
        return module["norm"](module["blocks"](x)) @ module["embedding"].weight.T

    return module, logits


def huggingface_gpt(size: dict[str, int]) -> tuple[torch.nn.Module, Callable]:
    """Returns GPT-2, and a function that computes its logits."""
    config = transformers.GPT2Config(
        vocab_size=size["vocab_size"], n_positions=size["length"], n_embd=size["d_model"],
        n_layer=size["num_layers"], n_head=size["num_heads"], n_inner=size["d_ff"],
        bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    module = transformers.GPT2LMHeadModel(config).train()
    return module, lambda tokens: module(input_ids=tokens).logits


def training_step(
    system: tuple[torch.nn.Module, Callable], size: dict[str, int], dtype: str
) -> Callable[[], None]:
    """Returns a function that takes one step."""
    module, logits_of = system
    optimizer = torch.optim.Adam(
        module.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=DEVICE == "cuda" or None
    )
    shape = (size["sides"] + 1, size["rows"], size["length"])
    *inputs, targets = torch.randint(4, size["vocab_size"], shape).unbind()
    smoothing = 0.1 if size["sides"] == 2 else 0.0

    def loss_of(*inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = logits_of(*inputs)
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), label_smoothing=smoothing
        )

    if DEVICE == "cuda":
        loss_of = torch.compile(loss_of)

    def step() -> None:
        loss = loss_of(*inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    return step


if __name__ == "__main__":
    main()
