"""How a stage says that the evaluation ends here."""

from __future__ import annotations

from artifacts.measurement import GuardFinding, Outcome

TASK_STAGE = "task"
"""Stage of a verdict on the task itself, whatever the candidate."""


class Failure(Exception):  # noqa: N818 - no error of the program: it carries a verdict to the end of the verifier
    """A verdict that is not ``correct``.

    Args:
        outcome, stage, reason: fields of the measurement.
        findings: what the guard saw.
        gone: the candidate's process ended by itself; its exit status says more.
        final: the same would happen with a device in sight; of interest where the candidate was loaded without one.
    """

    def __init__(
        self,
        outcome: Outcome,
        stage: str,
        reason: str,
        findings: tuple[GuardFinding, ...] = (),
        gone: bool = False,
        final: bool = False,
    ) -> None:
        self.outcome = outcome
        self.stage = stage
        self.reason = reason
        self.findings = findings
        self.gone = gone
        self.final = final
        super().__init__(reason)


def rejected(stage: str, rule: str, message: str) -> Failure:
    """The verdict on a candidate that breaks a rule."""
    return Failure(Outcome.REJECTED, stage, message, findings=(GuardFinding(rule=rule, message=message),))
