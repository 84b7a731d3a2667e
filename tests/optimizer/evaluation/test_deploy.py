from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from artifacts.errors import BadInputError
from optimizer.evaluation import deploy_runtime
from optimizer.evaluation.deploy import factory, swap
from optimizer.evaluation.deploy_runtime import restore


class Scaled(nn.Module):
    """The operator to replace."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, width + 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.scaled = Scaled(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(self.first(x))


class Fast(nn.Module):
    """Counts its calls; wrong by ``off``."""

    calls = 0

    def __init__(self, off: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.off = off

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).calls += 1
        return x * self.weight + self.off


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    Fast.calls = 0
    return Net().eval()


def used(net: Net, x: torch.Tensor) -> bool:
    """Whether the kernel ran for ``x``."""
    before = Fast.calls
    with torch.no_grad():
        net(x)
    return Fast.calls > before


def test_a_kernel_that_agrees_takes_the_place_of_the_submodule(net: Net) -> None:
    x = torch.randn(3, 4)
    expected = net(x)
    (result,) = swap(net, {"scaled": lambda _: Fast()}, [[x]])
    assert result.problem == ""
    assert used(net, x)
    with torch.no_grad():
        assert torch.equal(net(x), expected)


def test_a_kernel_that_differs_is_left_out(net: Net) -> None:
    x = torch.randn(3, 4)
    (result,) = swap(net, {"scaled": lambda _: Fast(0.5)}, [[x]])
    assert "differs from the original" in result.problem
    assert not used(net, x)


@pytest.mark.parametrize("x", [torch.randn(5, 4), torch.randn(4, 3).t()], ids=["another shape", "another layout"])
def test_other_inputs_than_the_verified_ones_fall_back_to_the_original(net: Net, x: torch.Tensor) -> None:
    swap(net, {"scaled": lambda _: Fast()}, [[torch.randn(3, 4)]])
    net.first = nn.Identity()  # type: ignore[assignment]
    assert not used(net, x)


def test_another_dtype_falls_back_to_the_original(net: Net) -> None:
    swap(net, {"scaled": lambda _: Fast()}, [[torch.randn(3, 4)]])
    assert not used(net.double(), torch.randn(3, 4).double())


def test_in_another_mode_than_the_verified_one_the_original_is_used(net: Net) -> None:
    swap(net, {"scaled": lambda _: Fast()}, [[torch.randn(2, 4)]])
    assert not used(net.train(), torch.randn(2, 4))
    assert used(net.eval(), torch.randn(2, 4))


def test_under_autocast_the_original_is_used(net: Net) -> None:
    swap(net, {"scaled": lambda _: Fast()}, [[torch.randn(2, 4)]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not used(net, torch.randn(2, 4))


def test_inputs_that_begin_between_wide_loads_fall_back_to_the_original() -> None:
    Fast.calls = 0
    net = Scaled(4).eval()
    swap(net, {"": lambda _: Fast()}, [[torch.randn(2, 4)]])
    with torch.no_grad():
        net(torch.randn(9)[1:].view(2, 4))
        assert Fast.calls == 1  # the check
        net(torch.randn(2, 4))
    assert Fast.calls == 2


def test_with_gradients_the_original_is_used(net: Net) -> None:
    x = torch.randn(3, 4)
    swap(net, {"scaled": lambda _: Fast()}, [[x]])
    before = Fast.calls
    net(x).sum().backward()
    assert Fast.calls == before
    assert net.scaled.weight.grad is not None


def test_parameters_that_change_later_reach_the_kernel(net: Net) -> None:
    x = torch.randn(3, 4)
    swap(net, {"scaled": lambda _: Fast()}, [[x]])
    with torch.no_grad():
        net.scaled.weight.mul_(2)
        fast = net(x)
        restore(net)
        assert torch.equal(fast, net(x))


def test_names_in_the_state_dict_stay(net: Net) -> None:
    before = list(net.state_dict())
    swap(net, {"scaled": lambda _: Fast()}, [[torch.randn(3, 4)]])
    assert list(net.state_dict()) == before


def test_a_kernel_that_cannot_be_built_leaves_the_original(net: Net) -> None:
    def broken(_: nn.Module) -> nn.Module:
        raise RuntimeError("no compiler")

    (result,) = swap(net, {"scaled": broken}, [[torch.randn(3, 4)]])
    assert "no compiler" in result.problem


def test_a_kernel_that_writes_to_its_inputs_is_left_out(net: Net) -> None:
    class Greedy(Fast):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(self.weight)

    (result,) = swap(net, {"scaled": lambda _: Greedy()}, [[torch.randn(3, 4)]])
    assert "changes its inputs" in result.problem


def test_an_unknown_submodule_is_named(net: Net) -> None:
    with pytest.raises(BadInputError, match="no submodule 'other'"):
        swap(net, {"other": lambda _: Fast()}, [[torch.randn(3, 4)]])


def test_the_model_itself_can_be_swapped_from_a_winner_file(tmp_path: Path) -> None:
    path = tmp_path / "best.py"
    path.write_text(
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.exp()\n"
        "def load(*args, reference=None):\n    return ModelNew(*args)\n"
    )

    class Exp(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.exp(x)

    (result,) = swap(Exp(), {"": factory(path)}, [[torch.randn(8)]])
    assert result.problem == ""


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_kernel_is_one_operator_of_a_compiled_model(net: Net, backend: str) -> None:
    x = torch.randn(3, 4)
    swap(net, {"scaled": lambda _: Fast()}, [[x]])
    before = Fast.calls
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    with torch.no_grad():
        found = compiled(x)
        assert Fast.calls == before + 1
        assert compiled(torch.randn(5, 4)).shape == (5, 4)  # not verified: the original
        net.scaled.weight.mul_(2)
        assert torch.allclose(compiled(x), 2 * found)
    assert Fast.calls == before + 2


def test_a_compiled_model_trains_with_the_original(net: Net) -> None:
    x = torch.randn(3, 4)
    net(x).square().sum().backward()
    wanted = net.scaled.weight.grad
    net.zero_grad()
    swap(net, {"scaled": lambda _: Fast()}, [[x]])
    before = Fast.calls
    torch.compile(net, backend="aot_eager", fullgraph=True)(x).square().sum().backward()
    assert Fast.calls == before
    assert net.scaled.weight.grad is not None
    assert wanted is not None
    assert torch.allclose(net.scaled.weight.grad, wanted)


def test_the_bare_operator_says_that_it_has_no_gradient() -> None:
    model, x = Scaled(4).eval(), torch.randn(2, 4)
    swap(model, {"": lambda _: Fast()}, [[x]])
    (result,) = deploy_runtime._operator([x.requires_grad_()], [], len(deploy_runtime._CALLS) - 1)
    with pytest.raises(RuntimeError, match="call the module"):
        result.sum().backward()


def test_several_outputs_keep_their_form_under_compile() -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, x.sum(dim=1)

    model, x = Pair().eval(), torch.randn(3, 4)
    (result,) = swap(model, {"": lambda _: Pair()}, [[x]])
    assert result.problem == ""
    with torch.no_grad():
        found = torch.compile(model, backend="eager", fullgraph=True)(x)
    assert isinstance(found, tuple)
    assert torch.equal(found[1], x.sum(dim=1))
