"""Where a step's time goes: each part is what the program did in it, and nothing is reported that was not measured."""

import copy
import dataclasses
import importlib.util
import io
from pathlib import Path
from typing import Any

import pytest

from console import job_texts
from muster.domain.job import pace as domain_pace
from muster.wire import training as wire
from tests.train.marks import TRAINS
from tests.train.train_case import Listening, Training

pytestmark = TRAINS
GPT = Path(__file__).resolve().parents[3] / "examples" / "pretrain_gpt.py"
if importlib.util.find_spec("torch") is not None:
    import torch

    from muster.train.report.flops import ModelShape, Recompute, Work
    from muster.train.report.pace import PARTS, StepTiming

DATA_S, FORWARD_S, LOSS_S, BACKWARD_S, CLIP_S, OPTIMIZER_S, PRINT_S = 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0
EXPLAINED = {"cpu_wait", "gc", "threads", "io_wait", "switches_per", "read_bytes_per"}
"""Readings that explain a slow rank: no parts of a step."""
NOTHING = {
    "data_s": 0.0,
    "forward_s": 0.0,
    "backward_s": 0.0,
    "collective_s": 0.0,
    "optimizer_s": 0.0,
    "other_s": 0.0,
    "checkpoint_s": 0.0,
}


class PlayedDevice:
    """Time passes as the program says; what is computed is passed only so far."""

    def __init__(self, gpu: str | None = None) -> None:
        self.gpu = gpu
        self.now_s = 100.0
        self.passed_s = float("inf")

    def mark(self) -> float:
        return self.now_s

    def stream(self) -> int:
        return 0

    def has_passed(self, mark: float) -> bool:
        return mark <= self.passed_s

    def seconds(self, earlier: float, later: float) -> float:
        return later - earlier

    def memory_bytes(self) -> int:
        return 3 << 20

    used_bytes = memory_bytes

    def spend(self, seconds: float) -> None:
        self.now_s += seconds


class Program:
    """A model and an optimizer that take their time, watched."""

    def __init__(self, device: PlayedDevice, **fields: Any) -> None:
        self.device = device
        self.model = model_that_takes_its_time(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        given = {"is_on": True, "work": None, "ranks_per_replica": 1, **fields}
        self.pace = StepTiming(device, now=lambda: device.now_s, **given)
        self.pace.watch(self.model, self.optimizer)
        self.optimizer.register_step_pre_hook(lambda *_: device.spend(OPTIMIZER_S))

    def passes(self) -> None:
        self.device.spend(DATA_S)
        logits = self.model(torch.ones(1, 2))["logits"][0]
        self.device.spend(LOSS_S)
        torch.autograd.backward(logits.sum())

    def updates(self) -> None:
        self.device.spend(CLIP_S)
        self.optimizer.step()

    def trains(self) -> None:
        self.pace.begin()
        self.passes()
        self.updates()
        self.device.spend(PRINT_S)
        self.pace.end()


def model_that_takes_its_time(device: PlayedDevice) -> torch.nn.Module:
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, value: torch.Tensor) -> torch.Tensor:
            device.spend(FORWARD_S)
            return value.clone()

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
            device.spend(BACKWARD_S)
            return gradients[0]

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, value: torch.Tensor) -> dict[str, list[torch.Tensor]]:
            out: torch.Tensor = Slow.apply(self.inner(value))  # type: ignore[no-untyped-call]
            return {"logits": [out]}

    return Model()


def parts(reported: dict[str, Any] | None) -> dict[str, float]:
    assert reported is not None
    return {name: reported[name] for name in NOTHING}


def test_each_part_of_a_step_has_what_was_done_in_it() -> None:
    program = Program(PlayedDevice())
    program.trains()
    assert parts(program.pace.word()) == {
        "data_s": DATA_S,
        "forward_s": FORWARD_S + LOSS_S,
        "backward_s": BACKWARD_S,
        "collective_s": 0.0,
        "optimizer_s": CLIP_S + OPTIMIZER_S,
        "other_s": PRINT_S,
        "checkpoint_s": 0.0,
    }


def test_between_two_pieces_of_a_batch_is_data_and_between_two_steps_is_checkpoint() -> None:
    program = Program(PlayedDevice())
    for saving_s in (0.5, 100.0):
        program.pace.begin()
        program.passes()
        program.passes()
        program.updates()
        program.pace.end()
        program.device.spend(saving_s)
    said = program.pace.word()
    assert said is not None
    assert said["num_steps"] == 2
    assert (said["data_s"], said["forward_s"], said["backward_s"]) == (2 * DATA_S, 12.0, 2 * BACKWARD_S)
    assert said["checkpoint_s"] == 0.25, "the second step's is reported with the third"


def test_a_pass_without_gradients_and_a_step_that_trains_nothing() -> None:
    program = Program(PlayedDevice())
    program.pace.begin()
    program.device.spend(DATA_S)
    with torch.no_grad():
        program.model(torch.ones(1, 2))
    program.device.spend(PRINT_S)
    program.pace.end()
    assert parts(program.pace.word()) == {**NOTHING, "data_s": DATA_S, "forward_s": FORWARD_S, "other_s": PRINT_S}
    program.device.spend(0.5)
    program.pace.begin()
    program.device.spend(3.0)
    program.pace.end()
    assert parts(program.pace.word()) == {**NOTHING, "other_s": 3.0, "checkpoint_s": 0.5}, "no hook saw a call"
    program.passes()
    assert program.pace.word(is_last=True) is None, "outside of a step nothing is counted"


def test_an_exchange_that_the_backward_pass_waits_for_is_collective() -> None:
    program = Program(PlayedDevice())
    program.pace.begin()
    program.device.spend(DATA_S)
    out = program.model(torch.ones(1, 2))["logits"][0]

    def exchange(_: torch.Tensor) -> None:
        with program.pace.exchanging():
            program.device.spend(0.125)

    weight: Any = next(program.model.parameters())
    weight.register_post_accumulate_grad_hook(exchange)
    torch.autograd.backward(out.sum())
    program.pace.end()
    said = parts(program.pace.word())
    assert (said["collective_s"], said["backward_s"], said["other_s"]) == (0.125, BACKWARD_S, 0.0)


def test_what_the_gpu_has_not_passed_yet_is_reported_later() -> None:
    program = Program(PlayedDevice())
    program.trains()
    program.device.passed_s = program.device.now_s
    program.trains()
    said = program.pace.word()
    assert said is not None
    assert said["num_steps"] == 1
    program.device.passed_s = float("inf")
    assert program.pace.word() is None, "it is too soon"
    program.trains()
    said = program.pace.word()
    assert said is not None
    assert (said["num_steps"], said["backward_s"]) == (2, BACKWARD_S)


def test_moments_that_cannot_be_compared_make_no_figure_and_no_harm() -> None:
    class OfAnotherStream(PlayedDevice):
        def seconds(self, earlier: float, later: float) -> float:
            if self.passed_s < float("inf"):
                raise RuntimeError("cudaErrorCapturedEvent")
            return later - earlier

        def has_passed(self, mark: float) -> bool:
            return True

    device = OfAnotherStream()
    program = Program(device)
    device.passed_s = 0.0
    program.trains()
    assert program.pace.word() is None
    device.passed_s = float("inf")
    program.trains()
    said = program.pace.word()
    assert said is not None
    assert said["num_steps"] == 1


def test_the_last_word_is_of_training_and_not_of_the_save_behind_it() -> None:
    program = Program(PlayedDevice())
    program.pace.begin()
    program.pace.note(tokens=torch.tensor(500))  # type: ignore[arg-type]  # as masks are counted
    program.device.spend(5.0)
    program.pace.end()
    program.device.spend(600.0)
    said = program.pace.word(is_last=True)
    assert said is not None
    assert said["tokens_per_s"] == 100.0
    program.trains()
    assert program.pace.word(is_last=True) is None, "it would report no rate where the message before did"


def test_outputs_of_every_kind_and_a_second_backward_pass() -> None:
    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor
        scale: torch.nn.Parameter

    program = Program(PlayedDevice())
    inner, scale = program.model, torch.nn.Parameter(torch.ones(1))

    class Wrapped(torch.nn.Module):
        def forward(self, value: torch.Tensor) -> Output:
            return Output(inner(value)["logits"][0], scale)

    outer = Wrapped()
    pace = StepTiming(program.device, is_on=True, work=None, ranks_per_replica=1, now=lambda: program.device.now_s)
    pace.watch(outer, None)
    pace.begin()
    loss = outer(torch.ones(1, 2)).logits.sum()
    torch.autograd.backward(loss, retain_graph=True)
    torch.autograd.backward(loss)
    pace.end()
    assert parts(pace.word()) == {**NOTHING, "forward_s": FORWARD_S, "backward_s": 2 * BACKWARD_S}
    assert not scale._backward_hooks, "a parameter that is given back is not hooked step after step"


def test_a_started_model_is_copied_and_kept_in_a_file_and_its_copy_reports_nothing() -> None:
    program = Program(PlayedDevice())
    program.pace.begin()
    model = torch.nn.Linear(2, 2)
    program.pace.watch(model, None)
    again = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    before = len(program.pace._marks)
    torch.autograd.backward(again(torch.ones(1, 2)).sum())
    assert len(program.pace._marks) == before


def test_a_step_that_evaluates_a_copy_of_the_model_is_no_plain_step() -> None:
    program = Program(PlayedDevice())
    averaged = torch.optim.swa_utils.AveragedModel(program.model).eval()
    own: list[Any] = []
    for is_evaluating in (False, False, True):
        program.pace.begin()
        if is_evaluating:
            averaged(torch.ones(1, 2))
        program.device.spend(1.0)
        program.pace.end()
        own.append(program.pace.own_word().get("own_steps"))
    assert own == [None, 1, None]


def test_a_rate_counts_each_token_once_and_mfu_is_of_the_gpus_known_peak() -> None:
    work = Work(ModelShape(matmul_params=1e9, layers=1, heads=1, head_dim=1, sequence=1), recompute=Recompute.FULL)
    known = Program(PlayedDevice("NVIDIA H100 80GB HBM3"), work=work, ranks_per_replica=2)
    known.pace.begin()
    known.pace.note(tokens=3_000_000)
    known.pace.note(tokens=1_000_000, grad_norm=torch.tensor(float("nan")))
    known.device.spend(20.0)
    known.pace.end()
    said = known.pace.word()
    assert said is not None
    assert (said["tokens_per_s"], said["memory_mib"], said["grad_norm"]) == (100_000.0, 3.0, None)
    assert said["mfu"] == pytest.approx(100_000 * 6e9 / 989e12, rel=1e-3)
    assert said["hfu"] == pytest.approx(4 / 3 * 100_000 * 6e9 / 989e12, rel=1e-3)
    unknown = Program(PlayedDevice("GeForce 256"), work=work)
    unknown.pace.begin()
    unknown.pace.note(tokens=1, grad_norm=2.5)
    unknown.device.spend(1.0)
    unknown.pace.end()
    said = unknown.pace.word()
    assert said is not None
    assert (said["mfu"], said["hfu"], said["grad_norm"]) == (None, None, 2.5)


def test_runtime_wire_and_console_speak_of_the_same_parts() -> None:
    assert PARTS == domain_pace.PARTS == tuple(job_texts.PACE)
    told = {field.removesuffix("_s") for field in wire.Pace.__struct_fields__ if field.endswith("_s")}
    assert told - {"tokens_per", "own", "wait", *EXPLAINED} == set(PARTS)


def test_what_does_not_want_it_has_no_hooks() -> None:
    program = Program(PlayedDevice(), is_on=False)
    program.trains()
    assert program.pace.word(is_last=True) is None
    assert not program.model._forward_hooks
    watched = Program(PlayedDevice())
    watched.pace.leave()
    assert not watched.model._forward_hooks
    assert not watched.model._forward_pre_hooks


def test_ranks_report_it_and_most_of_a_gloo_exchange_is_collective(training: Training) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        training.run("--sleep", "0.2", num_ranks=2, MUSTER_TRAIN_SOCKET=str(supervisor.path))
    told = supervisor.received("pace")
    assert sum(said["num_steps"] for said in told) == 2 * 12
    assert all(said["collective_s"] > 0 for said in told)
    assert all(said["other_s"] > 0.19 for said in told), "the program sleeps behind its optimizer"
    assert {said["mfu"] for said in told} == {None}


@pytest.mark.parametrize("words", ["ddp", "fsdp", "tensor --tensor 2"])
def test_only_what_ddp_exchanges_is_reported_as_collective(training: Training, words: str) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        training.run(
            "--steps",
            "4",
            "--layout",
            *words.split(),
            num_ranks=2,
            program=GPT,
            MUSTER_TRAIN_SOCKET=str(supervisor.path),
        )
    told = supervisor.received("pace")
    assert told
    assert {said["collective_s"] is not None for said in told} == {words == "ddp"}
    assert all(said["forward_s"] > 0 and said["backward_s"] > 0 for said in told)
