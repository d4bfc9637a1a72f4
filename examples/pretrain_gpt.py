"""GPT pretraining in every layout of torch, under Muster: DDP, FSDP2, HSDP, tensor parallelism, FSDP2 with it.

    muster job submit --follow --gpus 2 -- examples/pretrain_gpt.py --layout fsdp
    muster job submit --follow --gpus 4 -- examples/pretrain_gpt.py --layout fsdp --tensor 2

The losses of all layouts equal the losses of one process. A checkpoint of one layout continues in any other, on any
number of ranks. On the CPU over gloo and on GPUs over NCCL it is the same program.
"""

from muster import train  # first: it handles a stop while the rest is imported

# isort: split
import argparse
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

VOCABULARY = 16
SIGNS = "0123456789+-=; ?"


@dataclass(frozen=True)
class Shape:
    layers: int = 2
    heads: int = 4
    head_dim: int = 16
    context: int = 32

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


def corpus(num_sums: int = 4000) -> torch.Tensor:
    """Return sums of two numbers, "7+35=42;": made up here, always the same."""
    chance = torch.Generator().manual_seed(11)
    pairs = torch.randint(0, 60, (num_sums, 2), generator=chance).tolist()
    text = "".join(f"{first}+{second}={first + second};" for first, second in pairs)
    return torch.tensor([SIGNS.index(sign) for sign in text])


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, shape.width, bias=False)
        self.value = nn.Linear(shape.width, shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Under tensor parallelism each rank has some of the heads: as many as come out.
        query, key, value = (part(x).unflatten(-1, (-1, self.head_dim)) for part in (self.query, self.key, self.value))
        query, key = rotated(query), rotated(key)
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
        )
        attended: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return attended


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding (arXiv 2104.09864): it has no parameters, so no layout is needed for it."""
    half = x.shape[-1] // 2
    speeds = 1e4 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.outer(torch.arange(x.shape[1], device=x.device, dtype=torch.float32), speeds)[:, None, :]
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lowered: torch.Tensor = self.down(functional.gelu(self.up(x)))
        return lowered


class Block(nn.Module):
    def __init__(self, shape: Shape, *, recomputes: bool) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.feed_norm = nn.LayerNorm(shape.width)
        self.feed = FeedForward(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.recomputes and self.training:
            again: torch.Tensor = checkpoint(self._through, x, use_reentrant=False)
            return again
        return self._through(x)

    def _through(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        fed: torch.Tensor = x + self.feed(self.feed_norm(x))
        return fed


class Gpt(nn.Module):
    def __init__(self, shape: Shape, *, recomputes: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(Block(shape, recomputes=recomputes) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def cut_in_tensors(model: Gpt, mesh: DeviceMesh) -> None:
    """Cut heads and hidden units over the ranks of ``mesh``; between them the sequence; the loss over the vocabulary.

    Every parameter is on this mesh, the norms' too: so one mesh serves for clipping.
    """
    between = {
        "attention_norm": SequenceParallel(),
        "feed_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "feed": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    }
    inside = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    inside |= {"feed.up": ColwiseParallel()}
    joined = {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.out", "feed.down")}
    for block in model.blocks:
        parallelize_module(block, mesh, {**between, **inside, **joined})
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, ends)


def shard(model: Gpt, mesh: DeviceMesh, *, is_bf16: bool) -> None:
    """FSDP2 block by block; over a mesh of two dimensions replicated along the first (HSDP)."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if is_bf16 else None
    chosen: dict[str, Any] = {} if policy is None else {"mp_policy": policy}
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **chosen)
    fully_shard(model, mesh=mesh, **chosen)


def laid_out(model: Gpt, options: argparse.Namespace) -> DeviceMesh | None:
    """Shard the model as requested. Returns the ranks that read different samples; None: all of them, or DDP's."""
    if options.layout == "ddp":
        return None
    mesh = train.mesh(copies=options.copies, shards=-1, tensor=options.tensor)
    if options.tensor > 1:
        cut_in_tensors(model, mesh["tensor"])
    if options.layout == "fsdp":
        over = mesh["copies", "shards"] if options.copies > 1 else mesh["shards"]
        shard(model, over, is_bf16=options.bf16)
    return mesh["copies", "shards"]


def work_of(model: Gpt, shape: Shape, *, recomputes: bool) -> train.Work:
    """Return the cost of a token, for the run's MFU: all matrices but the embedding, which is looked up."""
    params = sum(weight.numel() for weight in model.parameters() if weight.ndim > 1) - model.embedding.weight.numel()
    counted = train.ModelShape(params, shape.layers, shape.heads, shape.head_dim, shape.context)
    return train.Work(counted, recompute=train.Recompute.FULL if recomputes else train.Recompute.NONE)


@contextlib.contextmanager
def loss_cut(*, is_cut: bool) -> Iterator[None]:
    """Compute the softmax over a vocabulary of which each rank has a part, without gathering it."""
    with loss_parallel() if is_cut else contextlib.nullcontext():
        yield


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=("ddp", "fsdp", "tensor"), default="ddp")
    parser.add_argument("--copies", type=int, default=1, help="of the sharded model: HSDP where more than one")
    parser.add_argument("--tensor", type=int, default=1, help="ranks that share each layer")
    parser.add_argument("--bf16", action="store_true", help="compute in bf16 and add up in fp32 (fsdp)")
    parser.add_argument("--recompute", action="store_true", help="activations again instead of keeping them")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8, help="samples a step, over all ranks")
    parser.add_argument("--accumulate", type=int, default=1, help="pieces in which a rank takes its samples")
    parser.add_argument("--checkpoint-every", type=steps_or_auto, default=20)
    return parser.parse_args()


def steps_or_auto(text: str) -> int | str:
    return text if text == "auto" else int(text)


def main() -> None:
    options = arguments()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    shape = Shape()
    model = Gpt(shape, recomputes=options.recompute).to(device)
    work = work_of(model, shape, recomputes=options.recompute)
    data_mesh = laid_out(model, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = corpus()

    run = train.start(
        model, optimizer, data_mesh=data_mesh, checkpoint_every=options.checkpoint_every, seed=1, work=work
    )
    num_readers = run.world_size if data_mesh is None else data_mesh.size()
    share = options.batch_size // num_readers
    for step in run.steps(options.steps):
        starts = run.sample_indices(len(data) - shape.context - 1, share)
        batch = torch.stack([data[begin : begin + shape.context + 1] for begin in starts]).to(device)
        optimizer.zero_grad()
        total = 0.0
        for piece in batch.chunk(options.accumulate * run.accumulation):
            with loss_cut(is_cut=options.tensor > 1):
                logits = run.model(piece[:, :-1])
                loss = functional.cross_entropy(logits.flatten(0, 1).float(), piece[:, 1:].flatten())
                torch.autograd.backward(loss * (len(piece) / len(batch)))
            whole = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
            total += whole.item() * len(piece) / len(batch)
        norm = run.clip_grad_norm(1.0)
        optimizer.step()
        run.report(loss=total, tokens=batch[:, 1:].numel())
        print(f"step {step + 1} {total!r} {norm.item()!r}", flush=True)
    run.finish()


if __name__ == "__main__":
    main()
