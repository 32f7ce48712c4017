"""Swin (Liu et al. 2021): a Vision Transformer whose attention is within windows.

Time and memory are proportional to the number of pixels.
"""

import dataclasses
import functools
from typing import Any, Literal

from flax import linen as nn
from jaxtyping import Array, Float

from jaxformer.errors import UserError
from jaxformer.fields import setting
from jaxformer.models.architecture import Architecture
from jaxformer.models.assembly import Model
from jaxformer.models.encoder import linear
from jaxformer.models.pictures import PatchArchitecture, Pictures, StackSizes
from jaxformer.models.vit import patches
from jaxformer.nn.block import Block, Residual
from jaxformer.nn.dropout import Dropout, RowIds, dropout_rows
from jaxformer.nn.feed_forward import Activation, FeedForward
from jaxformer.nn.grid_positions import GridBias
from jaxformer.nn.matmul import project
from jaxformer.nn.norm import LayerNorm
from jaxformer.nn.parameters import parameter
from jaxformer.nn.precision import ComputeDtype, activation_dtype
from jaxformer.nn.rematerialization import Remat
from jaxformer.nn.stack import Stack
from jaxformer.nn.window_attention import ShiftedPair, WindowAttention

# Of the norms outside of blocks, whatever ``norm_epsilon`` is.
_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwinStage(Architecture):
    """One stage of a :class:`Swin`: a stack on a grid of patches.

    Attributes:
      rows: Rows of the grid; also ``columns``.
    """

    d_model: int = setting(check="size")
    d_ff: int = setting(check="size")
    num_heads: int = setting(check="size")
    num_layers: int = setting(check="size")
    rows: int = setting(check="size")
    columns: int = setting(check="size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwinConfig(PatchArchitecture):
    """The architecture of a :class:`Swin`; by default Swin-T.

    ``d_model``, ``d_ff`` and ``num_heads`` are for the first stage, and double from stage to stage.
    Fields that are not listed are as in :class:`~jaxformer.ViTConfig`.

    Attributes:
      window_size: Side of a window in patches, which divides the grid of patches of each stage.
      depths: Number of blocks of each stage, separated by spaces. They are even: every second block
        has shifted windows.
    """

    architecture: Literal["swin"] = "swin"
    patch_size: int = setting(4, "positive")
    window_size: int = setting(7, "positive")
    depths: str = "2 2 6 2"
    d_model: int = setting(96, "size")
    d_ff: int = setting(384, "size")
    num_heads: int = setting(3, "size")
    activation: Activation = "gelu_exact"
    dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    attention_dropout_rate: float = setting(0.0, "fraction", may_differ=True)
    norm_epsilon: float = setting(1e-5, "positive")
    compute_dtype: ComputeDtype = setting("float32", may_differ=True, per_use=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        depths = self.depths.split()
        are_even = all(depth.isdecimal() and int(depth) > 0 == int(depth) % 2 for depth in depths)
        if not depths or not are_even:
            raise UserError(
                "model.depths must be even numbers of blocks, one for each stage, separated by "
                f"spaces: got {self.depths!r:.80}"
            )
        self._check_grids()

    def _check_grids(self) -> None:
        """Checks that neighbors can be merged between stages, and that windows fit all of them."""
        for number, stage in enumerate(self.stages):
            factor = self.patch_size * 2**number
            has_rest = self.height % factor or self.width % factor
            if has_rest or stage.rows % self.window_size or stage.columns % self.window_size:
                rows = self.height / factor
                columns = self.width / factor
                raise UserError(
                    f"model.window_size={self.window_size} must divide the grid of patches of each "
                    f"stage, which halves after each: got {rows:g} x {columns:g} in stage "
                    f"{number + 1}"
                )

    @property
    def stages(self) -> tuple[SwinStage, ...]:
        found = []
        for number, depth in enumerate(map(int, self.depths.split())):
            factor = 2**number
            stage = SwinStage(
                d_model=factor * self.d_model,
                d_ff=factor * self.d_ff,
                num_heads=factor * self.num_heads,
                num_layers=depth,
                rows=max(1, self.height // (factor * self.patch_size)),
                columns=max(1, self.width // (factor * self.patch_size)),
            )
            found.append(stage)
        return tuple(found)

    @property
    def num_layers(self) -> int:
        return sum(stage.num_layers for stage in self.stages)

    @property
    def pooled_size(self) -> int:
        """Number of features that are classified."""
        return self.stages[-1].d_model

    @property
    def stacks(self) -> tuple[StackSizes, ...]:
        length = self.window_size**2
        found = []
        for stage in self.stages:
            windows = stage.rows * stage.columns // length
            found.append(StackSizes(stage, sequences=windows, length=length))
        return tuple(found)


class Swin(Model):
    """An encoder of patches in windows that predicts classes of pictures.

    Departs from the paper: there is no decoder; attention is within windows, which every second
    block shifts, and neighboring patches are merged between stages.
    """

    config: SwinConfig

    def setup(self) -> None:
        self._check_config()
        c = self.config
        axes = ("patch", "d_model")
        values = c.patch_size**2 * c.channels
        self.patches = self._make_linear("patches", c.d_model, axes, inputs=values)
        self.embedding_norm = LayerNorm(_EPSILON)
        self.dropout = Dropout(c.dropout_rate)

        self.stages = [_make_stage(c, stage, self.remat) for stage in c.stages]
        grids = [(stage.rows, stage.columns) for stage in c.stages]
        self.merges = [PatchMerging(grid, c.compute_dtype) for grid in grids[:-1]]
        self.norm = LayerNorm(c.norm_epsilon)
        if c.num_classes:
            self.classes = self._make_linear("classes", c.num_classes, inputs=c.pooled_size)

    def __call__(
        self,
        images: Pictures,
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B K"]:
        """Returns logits of the classes; arguments as for :class:`~jaxformer.ViT`."""
        features = self.features(images, deterministic, row_ids=row_ids)
        pooled = features.mean(axis=1)  # [B, D]

        if not self.config.num_classes:
            return pooled
        return linear(pooled, *self.classes)

    def features(
        self,
        images: Pictures,
        deterministic: bool = True,
        *,
        row_ids: RowIds = None,
    ) -> Float[Array, "B T D"]:
        """Returns the output of the last stage, for each of its patches."""
        c = self.config
        c.check_pictures("Swin", images)
        x = project(patches(images, c.patch_size), *self.patches, c.compute_dtype)
        x = self.embedding_norm(x).astype(activation_dtype(c.compute_dtype, x))  # [B, T, D]

        dropout = dropout_rows(images.shape[0], deterministic, row_ids)
        x = self.dropout(x, dropout)
        for number, stage in enumerate(self.stages):
            x = stage(x, dropout=dropout)
            if number < len(self.merges):
                x = self.merges[number](x)  # [B, T / 4, 2 D]
        return self.norm(x)


class PatchMerging(nn.Module):
    """Merges squares of four neighbors, and doubles the width.

    Attributes:
      grid: Rows and columns of the inputs, both even.
      compute_dtype: Dtype of the inputs of the matrix multiplication.
    """

    grid: tuple[int, int]
    compute_dtype: ComputeDtype = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B M E"]:
        rows, columns = self.grid
        batch, _, width = x.shape
        squares = x.reshape(batch, rows // 2, 2, columns // 2, 2, width)
        # Published weights have the neighbors of a square column by column.
        by_column = squares.transpose(0, 1, 3, 4, 2, 5)
        merged = by_column.reshape(batch, rows * columns // 4, 4 * width)

        normalized = LayerNorm(_EPSILON, name="norm")(merged)
        matrix = parameter(
            self,
            "reduction",
            nn.initializers.xavier_uniform(),
            (4 * width, 2 * width),
            axes=("d_model", None),
            role="matrix",
        )
        return project(normalized, matrix, compute_dtype=self.compute_dtype)


def _make_stage(config: SwinConfig, stage: SwinStage, remat: Remat) -> Stack:
    """Returns the blocks of a stage, in pairs."""
    c = config
    grid = (stage.rows, stage.columns)
    # A window that is as large as the grid has nowhere to move.
    shift = c.window_size // 2 if min(grid) > c.window_size else 0

    def make_block(shift: int) -> Block:
        attention = WindowAttention(
            stage.num_heads,
            use_bias=True,
            dropout_rate=c.attention_dropout_rate,
            make_bias=functools.partial(GridBias, stage.num_heads, (c.window_size, c.window_size)),
            compute_dtype=c.compute_dtype,
            grid=grid,
            window=c.window_size,
            shift=shift,
        )
        make_norm = functools.partial(LayerNorm, c.norm_epsilon)
        return Block(
            self_attention=attention,
            feed_forward=FeedForward(stage.d_ff, c.activation, c.compute_dtype),
            make_residual=functools.partial(Residual, "pre", c.dropout_rate, make_norm),
        )

    pair: Any = ShiftedPair(make_block(0), make_block(shift))
    return Stack(layers=pair, num_layers=stage.num_layers // 2, remat=remat)
