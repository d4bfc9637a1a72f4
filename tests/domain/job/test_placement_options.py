"""What people write of a job's place, read as parts of a specification."""

import pytest

from muster.domain.job.placement_options import labels_of, layout_of, slices_of


def test_what_is_written_is_read() -> None:
    assert slices_of(["rack=16", "pod=32"]) == [{"level": "rack", "ranks": 16}, {"level": "pod", "ranks": 32}]
    assert layout_of("pp=2, tp=8") == {"pp": 2, "tp": 8}
    assert labels_of(["zone=a|b", "zone=c", "disk=nvme"]) == {"zone": ["a", "b", "c"], "disk": ["nvme"]}


@pytest.mark.parametrize("word", ["", "tp", "tp=", "=8", "tp=-1", "tp=1.5", "tp=٣"])
def test_a_degree_is_a_name_and_a_number(word: str) -> None:
    with pytest.raises(ValueError, match="is not NAME=NUMBER, such as tp=8"):
        layout_of(word)
