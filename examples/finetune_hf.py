"""Fine-tuning of a Hugging Face causal language model under Muster: LoRA, by DDP or FSDP2.

    muster job submit --follow --gpus 2 -- examples/finetune_hf.py --layout fsdp

The model's own matrices stay as they are; new matrices next to them, and the head, are learnt. The model here is a tiny
Llama made from its config, so that nothing is fetched, and its text is the project's licence, byte by byte. For a real
one, use ``AutoModelForCausalLM.from_pretrained(folder)`` and its tokenizer instead.
"""

from muster import train  # first: it handles a stop while the rest is imported

# isort: split
import argparse
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

REQUIREMENT = "transformers>=5.23,<5.24"  # pyproject.toml's extra "huggingface"
try:
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel
except ModuleNotFoundError as missing:
    if missing.name != "transformers":
        raise
    sys.stderr.write(f"{Path(__file__).name} needs Hugging Face's models: pip install '{REQUIREMENT}'\n")
    sys.exit(2)

TEXT = Path(__file__).resolve().parents[1] / "LICENSE"
CONTEXT = 64
TINY = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=CONTEXT,
    tie_word_embeddings=False,
    use_cache=False,
)


class Lora(nn.Module):
    """A frozen linear layer, plus a product of two thin ones that is learnt (arXiv 2106.09685)."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # so that the model begins as it came

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.frozen(x) + self.up(self.down(x))
        return added


def adapt(model: PreTrainedModel, rank: int) -> None:
    """Freeze all but the head, and put a ``Lora`` in the place of every linear layer in the blocks."""
    model.requires_grad_(requires_grad=False)
    model.lm_head.requires_grad_(requires_grad=True)
    for block in model.model.layers:
        for name, layer in list(block.named_modules()):
            if isinstance(layer, nn.Linear):
                block.set_submodule(name, Lora(layer, rank))


def own_device() -> torch.device:
    """Return this rank's GPU among its host's; the CPU if there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def shard(model: PreTrainedModel, device: torch.device) -> None:
    """FSDP2 block by block, the frozen matrices too: they need the most room. On GPUs in bf16, added up in fp32."""
    mesh = train.mesh(shards=-1)
    in_bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = in_bf16 if device.type == "cuda" else MixedPrecisionPolicy()
    for block in model.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    several_gpus = torch.cuda.is_available() and int(os.environ.get("WORLD_SIZE", "1")) > 1
    parser.add_argument("--layout", choices=("ddp", "fsdp"), default="fsdp" if several_gpus else "ddp")
    parser.add_argument("--rank", type=int, default=8, help="of the learnt product at each matrix")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8, help="samples a rank")
    parser.add_argument("--checkpoint-every", type=steps_or_auto, default=20)
    return parser.parse_args()


def steps_or_auto(text: str) -> int | str:
    return text if text == "auto" else int(text)


def main() -> None:
    options = arguments()
    device = own_device()
    torch.manual_seed(1)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(TINY)  # type: ignore[no-untyped-call]  # its own gap
    adapt(model, options.rank)
    model.train().to(device)
    if options.layout == "fsdp":
        shard(model, device)
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)
    data = torch.tensor(list(options.text.read_bytes()))

    run = train.start(model, optimizer, scheduler, checkpoint_every=options.checkpoint_every, seed=1)
    if run.rank == 0:
        print(f"{sum(each.numel() for each in learnt)} of {model.num_parameters()} parameters learn", flush=True)
    for step in run.steps(options.steps):
        starts = run.sample_indices(len(data) - CONTEXT, options.batch_size)
        batch = torch.stack([data[begin : begin + CONTEXT] for begin in starts]).to(device)
        loss = run.model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        run.clip_grad_norm(1.0)
        optimizer.step()
        scheduler.step()
        run.report(loss=loss, tokens=batch.numel())
        print(f"step {step + 1} {loss.item()!r}", flush=True)
    run.finish()


if __name__ == "__main__":
    main()
