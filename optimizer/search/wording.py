"""What a ledger knows, in the lines that a prompt holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from artifacts.memory.records import Transition
from artifacts.state import State
from optimizer.llm.fence import brief
from optimizer.search.ledger import Example, Ledger, Pitfall, Record

GAINED = "What gained there (speed after over speed before, each operator counted once):"
IDLE = "What came to nothing there, on kernels that were sound already:"
NEAREST = "Steps that gained, the nearest to this one first:"
FAILED = "What failed there, and its cure:"

LONGEST = 500
"""Characters of one plan; whole sentences as far as there are any."""


def told(ledger: Ledger, state: State, learnt: Sequence[Transition] = ()) -> str:
    """What ``ledger`` and what other tasks of the run have ``learnt`` say to ``state``; empty for nothing."""
    examples = ledger.examples(state, learnt)
    pitfalls = ledger.pitfalls(state, {example.strategy for example in examples})
    blocks = (
        _block(GAINED, map(_paying, ledger.paying(state))),
        _block(IDLE, map(_idle, ledger.idle(state))),
        _block(NEAREST, map(_example, examples)),
        _block(FAILED, map(_pitfall, pitfalls)),
    )
    return "\n\n".join(block for block in blocks if block)


def _block(title: str, lines: Iterable[str]) -> str:
    listed = [f"- {line}" for line in lines]
    return "\n".join([title, *listed]) if listed else ""


def _factor(log2: float) -> str:
    return f"{2**log2:.2f}x"


def _paying(record: Record) -> str:
    lost = f", {record.failures} more failed" if record.failures else ""
    return (
        f"{record.name}: {_factor(record.mean)} [{_factor(record.low)} to {_factor(record.high)}] over "
        f"{record.operators} operators ({', '.join(record.families)}) in {record.steps} steps{lost}"
    )


def _idle(record: Record) -> str:
    return f"{record.name}: {_factor(record.mean)} over {record.operators} operators in {record.steps} steps"


def _example(example: Example) -> str:
    return f"{_factor(example.gain)} on {example.operator}: {brief(example.text, LONGEST)}"


def _pitfall(pitfall: Pitfall) -> str:
    text, cure = brief(pitfall.text, LONGEST // 2), brief(pitfall.cure, LONGEST)
    return f"{pitfall.outcome} on {pitfall.operator}: {text} The cure: {cure}"
