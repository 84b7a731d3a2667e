"""``htam apply``: check verified kernels of a run inside an nn.Module."""

from __future__ import annotations

from pathlib import Path

import click

from artifacts.errors import BadInputError


@click.command(name="apply")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--swap",
    "swaps",
    multiple=True,
    required=True,
    metavar="NAME=TASK",
    help="Submodule and the task whose kernel replaces it; . is the model itself.",
)
@click.option("--device", default="cpu", show_default=True, help="Torch device to run on.")
@click.option(
    "--calls", default=3, show_default=True, type=click.IntRange(min=1), help="Draws of get_inputs() to check with."
)
def command(run: Path, model: Path, swaps: tuple[str, ...], device: str, calls: int) -> None:
    """Swap the best kernels of RUN into the Model that the file MODEL defines, and check them there.

    MODEL has the form of a task file: Model, get_inputs, get_init_inputs. Kernels that agree with the original on
    its inputs are used for such inputs, the original for all others and wherever gradients are wanted.

    \b
    Examples:
      htam apply runs/first network.py --swap encoder.norm=layer_norm --device cuda
      htam apply runs/first examples/tasks/cpu/row_softmax.py --swap .=row_softmax
    """
    from pipeline.applying import applied

    pairs = dict(_pair(text) for text in swaps)
    results, report = applied(run, model, pairs, device, calls)
    click.echo(report)
    refused = [result for result in results if result.problem]
    if refused:
        raise BadInputError(
            f"{refused[0].name or 'the model itself'} keeps its original: {refused[0].problem}",
            "the other kernels were swapped" if len(refused) < len(results) else "nothing was swapped",
        )


def _pair(text: str) -> tuple[str, str]:
    name, found, task = text.partition("=")
    if not found or not name or not task:
        raise BadInputError(f"--swap {text!r} is not NAME=TASK", "e.g. --swap encoder.norm=layer_norm")
    return ("" if name == "." else name), task
