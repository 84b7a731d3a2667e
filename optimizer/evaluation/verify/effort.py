"""How much of a device's time a candidate deserves: decided by its first timed calls, against the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from optimizer.evaluation.device_lock import STRETCH_S
from optimizer.evaluation.sandbox.clock import Call, Clock
from optimizer.evaluation.verify.timing import TimingSettings

FAR_SLOWER = 3.0
"""Times the reference (and the incumbent) from which on a time is measured roughly."""
ROUGH_SAMPLES = 3
_TRIALS_S = {"cpu": 120.0, "cuda": 3.0}
_ROUGH_TRIALS_S = {"cpu": 60.0, "cuda": 1.5}
_FIRST_CALL_S = {"cpu": 60.0, "cuda": 8.0}
_COMPILING_S = 60.0
"""A first call of Triton compiles, and may try many ways to."""
_CALL_S = {"cpu": 30.0, "cuda": 4.0}
_TIMES_EAGER = 50.0
"""A call that takes longer than that, and longer than the seconds above, is as good as endless."""
_STEADY = 0.6
"""Of the time of the first calls that a later one takes at least, or somebody only seemed to be slow."""
_PATIENCE_S = 1.5
"""For the least number of samples of one callable."""
_CHECK_S = 0.5
"""For the calls of one check that others wait for; a call that takes long shows what it hides in few."""
_LEAST_SAMPLES = 5


def limits(backend: str, eager_s: float, *, compiles: bool, most_s: float) -> tuple[float, float]:
    """Seconds that a candidate's first call and a later one may take, where the reference takes ``eager_s``.

    ``most_s`` is the job's own limit.
    """
    relative = _TIMES_EAGER * eager_s
    first = _COMPILING_S if compiles else _FIRST_CALL_S[backend]
    return min(max(first, relative), most_s), min(max(_CALL_S[backend], relative), most_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What a candidate is given.

    Attributes:
        call_s: seconds of one of its calls, as its first ones took.
        rough: whether it is measured roughly; ``why``: in words.
        trials_s: seconds for its trials.
    """

    call_s: float
    rough: bool
    why: str
    trials_s: float

    @classmethod
    def deserved(cls, backend: str, call_us: float, best_us: float, incumbent_us: float | None) -> Effort:
        """The effort for a candidate whose fastest call so far took ``call_us``.

        Args:
            best_us: of the reference.
            incumbent_us: of the incumbent, None without one. Whoever is near it deserves a close look.
        """
        fair = max(best_us, incumbent_us or 0.0)
        rough = call_us > FAR_SLOWER * fair
        why = f"{call_us / best_us:.0f} times as slow as the reference" if rough else ""
        spent = _ROUGH_TRIALS_S if rough else _TRIALS_S
        return cls(call_s=call_us / 1e6, rough=rough, why=why, trials_s=spent[backend])

    def as_slow(self, call_us: float) -> bool:
        """Whether a later call is about as slow as the first ones, by which the effort was decided."""
        return call_us > _STEADY * 1e6 * self.call_s

    def settings(self, settings: TimingSettings) -> TimingSettings:
        """Fewer samples of calls that take long: their relative noise is small."""
        least = min(settings.min_samples, max(int(_PATIENCE_S / self.call_s), _LEAST_SAMPLES))
        return replace(settings, min_samples=least)

    def calls(self, wanted: int, least: int = 1, seconds: float = _CHECK_S) -> int:
        """How many calls one check may take of the ``wanted`` ones."""
        return max(min(wanted, int(seconds / self.call_s)), least)


class BreathingClock:
    """A clock whose batches are divided, so that others may use the device between the parts.

    Args:
        clock: measures.
        breathe: called between parts; lets others in when we have been alone for long.
        call_s: about what one call takes, cooling included.
    """

    def __init__(self, clock: Clock, breathe: Callable[[], None], call_s: float) -> None:
        self._clock = clock
        self._breathe = breathe
        self._size = max(int(STRETCH_S / 2 / max(call_s, 1e-9)), 1)

    def measure(self, prepares: Sequence[Callable[[], Call]]) -> list[float]:
        """See :class:`optimizer.evaluation.sandbox.clock.Clock`."""
        samples: list[float] = []
        for start in range(0, len(prepares), self._size):
            if start:
                self._breathe()
            samples += self._clock.measure(prepares[start : start + self._size])
        return samples
