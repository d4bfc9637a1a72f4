"""The placement rules of a job: levels of the fleet's tree, slices, node labels, a parallel layout."""

from typing import Annotated, Final, Self

from pydantic import Field, field_validator, model_validator

from muster.domain.strict import Name, StrictModel, Text

MOST_RANKS: Final = 12_500 * 576
_Degree = Annotated[int, Field(ge=1, le=MOST_RANKS)]
_LabelValues = Annotated[tuple[Text, ...], Field(min_length=1, max_length=64, strict=False)]


class SliceRule(StrictModel):
    """Each ``ranks`` ranks that follow each other, counted from the first, stand in one domain of ``level``.

    They fill whole hosts, and the job's ranks are a multiple of them.
    """

    level: Name
    ranks: Annotated[int, Field(ge=1, le=MOST_RANKS)]


class TopologyRule(StrictModel):
    """The distance that a gang's hosts may have. A level is a name of the fleet's tree, such as ``rack``."""

    required: Name | None = None
    preferred: Name | None = None
    slices: tuple[SliceRule, ...] = Field(default=(), max_length=8, strict=False)
    balance: Name | None = None

    @field_validator("slices")
    @classmethod
    def _one_a_level(cls, slices: tuple[SliceRule, ...]) -> tuple[SliceRule, ...]:
        levels = [one.level for one in slices]
        if len(set(levels)) < len(levels):
            raise ValueError("names a level twice: a level has one size of slices")
        return slices


class ParallelLayout(StrictModel):
    """The division of a program's ranks: ``pp`` × ``dp`` × ``fsdp`` × ``tp``, in the order of torch's device mesh.

    ``tp`` (tensor parallel) varies fastest, then ``fsdp`` (a sharded data-parallel group), ``dp`` (its replicas), and
    ``pp`` (pipeline stages). A tensor-parallel group is placed in one NVLink domain: on one host, or in one domain of
    the policy's ``placement.nvlink_level``. A replica of the model (all ranks of one ``dp``, so its whole pipeline) is
    placed under one network leaf if possible, else each group of ``fsdp`` × ``tp`` ranks is; node ranks follow from
    that.
    """

    tp: _Degree = 1
    fsdp: _Degree = 1
    dp: _Degree = 1
    pp: _Degree = 1
    allow_tp_across_nodes: bool = False

    @property
    def num_ranks(self) -> int:
        return self.tp * self.fsdp * self.dp * self.pp


class NodeLabelRule(StrictModel):
    """The hosts on which a job may run, by labels that operators set."""

    required: dict[Name, _LabelValues] = Field(default_factory=dict, max_length=32)
    forbidden: dict[Name, _LabelValues] = Field(default_factory=dict, max_length=32)

    @model_validator(mode="after")
    def _leaves_a_value(self) -> Self:
        for name, values in self.required.items():
            if set(values) <= set(self.forbidden.get(name, ())):
                raise ValueError(f"`required` and `forbidden` leave the label {name} no value")
        return self
