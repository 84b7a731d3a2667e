"""What a run's manifest becomes."""

from __future__ import annotations

from artifacts.device import device_spec
from optimizer.run.opening import in_words


def test_a_known_device_is_named_with_its_ceilings() -> None:
    text = in_words(device_spec("NVIDIA H200"))
    for words in ("h200 (sm_90", "4800 GB/s", "67 in float32", "990 in half precision", "50 MiB of L2"):
        assert words in text


def test_a_device_without_tensor_cores_is_not_said_to_have_them() -> None:
    assert "TF32" not in in_words(device_spec("V100"))


def test_of_an_unknown_device_only_the_name_is_told() -> None:
    assert in_words(device_spec("cpu")) == "cpu"
    assert in_words(device_spec("Own Chip 7")) == "own chip 7"
