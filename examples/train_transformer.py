"""A small character transformer on a text of our own: what a training job looks like under Muster, whole and short.

    muster job submit --follow --gpus 2 -- examples/train_transformer.py --steps 200

Kill anything while it runs: it continues at the exact next step, and the loss is the same bit for bit.
"""

from muster import train  # first: it handles a stop while the rest is imported

# isort: split
import argparse
import random
import time

import torch
from torch import nn
from torch.nn import functional

WIDTH, NUM_HEADS, NUM_LAYERS, CONTEXT = 64, 4, 2, 48
SUBJECTS = ("the scheduler", "a rank", "the fleet", "one GPU", "the operator", "a gang", "the supervisor", "a host")
CORPUS_VERBS = ("waits for", "places", "reports to", "evacuates", "verifies", "resumes", "reclaims", "trusts", "counts")
OBJECTS = ("the newest checkpoint", "eight neighbours", "a quiet rack", "its lease", "every byte", "the next step")
ENDINGS = ("before dawn", "without a word", "under load", "once and only once", "as the policy says", "in rank order")


def corpus(num_sentences: int = 900) -> str:
    """Return about 45 kB of text, always the same."""
    chance = random.Random(7)  # noqa: S311  # a text that must repeat
    sentences = (
        f"{chance.choice(SUBJECTS)} {chance.choice(CORPUS_VERBS)} {chance.choice(OBJECTS)} {chance.choice(ENDINGS)}."
        for _ in range(num_sentences)
    )
    return "\n".join(sentences)


class Transformer(nn.Module):
    def __init__(self, num_characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(num_characters, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, NUM_HEADS, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, NUM_LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, num_characters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.characters(text) + self.places(torch.arange(length))
        logits: torch.Tensor = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return logits


def steps_or_auto(text: str) -> int | str:
    return text if text == "auto" else int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=8, help="samples a rank")
    parser.add_argument("--checkpoint-every", type=steps_or_auto, default=20)
    parser.add_argument("--alike", action="store_true", help="the same samples on all ranks, as one seed would give")
    parser.add_argument("--step-sleep", type=float, default=0.0, help="seconds; to have time to watch")
    options = parser.parse_args()

    torch.manual_seed(1)
    text = corpus()
    alphabet = sorted(set(text))
    data = torch.tensor([alphabet.index(character) for character in text])
    model = Transformer(len(alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)

    run = train.start(model, optimizer, scheduler, checkpoint_every=options.checkpoint_every, seed=1)
    for step in run.steps(options.steps):
        starts = run.sample_indices(len(data) - CONTEXT - 1, options.batch_size)
        if options.alike:
            starts = list(range(step, step + options.batch_size))
        batch = torch.stack([data[begin : begin + CONTEXT + 1] for begin in starts])
        logits = run.model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        scheduler.step()
        run.report(loss=loss, tokens=batch[:, 1:].numel())
        if run.rank == 0:
            print(f"step {step + 1} loss {loss.item()!r}", flush=True)
        time.sleep(options.step_sleep)
    run.finish()


if __name__ == "__main__":
    main()
