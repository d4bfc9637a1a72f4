"""GPUs that ``muster run`` reads, by the names that CUDA_VISIBLE_DEVICES gives them."""

import pytest

from muster.cli.job.run_host import names_by_uuid


def test_gpus_are_named_by_number_uuid_or_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    alike = {"GPU-aa": "H100", "GPU-ab": "H100", "GPU-b": "H100"}
    assert names_by_uuid(("2", "0"), alike) == {"GPU-b": "2", "GPU-aa": "0"}
    assert names_by_uuid(("GPU-b", "GPU-a", "MIG-x", "7"), alike) == {"GPU-b": "GPU-b"}
    mixed = {**alike, "GPU-b": "T4"}
    assert names_by_uuid(("2",), mixed) == {}, "CUDA counts by speed there"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert names_by_uuid(("2",), mixed) == {"GPU-b": "2"}
