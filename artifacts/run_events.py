"""Payloads of run-log events that the builder and the reports read.

``task_started`` and ``step`` together hold everything that mining needs; the other events exist so
that a run can be resumed and explained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from artifacts.measurement import Doubt, Measurement
from artifacts.task import TaskRef
from artifacts.trajectory import State


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStarted:
    """Payload of ``task_started`` (key: the task id).

    Attributes:
        source_sha256: the reference source, stored in ``candidates/``.
        path: where the task file was, for messages.
    """

    task: TaskRef
    source_sha256: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """Payload of ``step`` (key: ``<task id>/<step id>``): one candidate with its choice and its result.

    Attributes:
        step_id: unique within the task, e.g. ``2.0`` (step 2, candidate 0).
        parent_id: step the candidate was derived from; None when it was written from the reference.
        incumbent_id: step of the candidate that it was timed against and that ``faster_than_incumbent`` speaks of.
        best_id: the task's best candidate once this step was learnt; only one that its paired test does not call
            slower can become it.
        index: zero-based step; all candidates of a step share it.
        mode: ``first``, ``repair``, ``optimize`` or ``tune``.
        candidate_sha256, parent_sha256: sources in ``candidates/``; empty when the answer held no code.
        direction: direction id, empty when nothing was chosen (feedback only, gated).
        plan: what the LLM was asked to do in one paragraph, or what it says it did.
        shown: part of the prompt (``strategies``, ``device experience``, ``reference kernel``, ...) → ids of the
            strategies, transitions or steps that stood in it.
        measurement: None when the answer held no usable code; ``error`` then says why.
        choice_probability: probability with which the arm chose this direction.
        explored: the direction was drawn at random by the exploration share.
        model: name of the LLM that answered.
    """

    task_id: str
    step_id: str
    parent_id: str | None
    index: int
    mode: str
    candidate_sha256: str
    parent_sha256: str
    direction: str
    strategies: tuple[str, ...]
    plan: str
    state: State
    measurement: Measurement | None
    incumbent_id: str | None = None
    best_id: str | None = None
    shown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: str = ""
    choice_probability: float | None = None
    explored: bool = False
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFinished:
    """Payload of ``task_finished`` (key: the task id).

    Attributes:
        reason: why the search stopped (steps used, near the bound, budget, stopped by the user).
        best_step: step id of the winner, empty when no candidate was correct.
        speedups: ``fastest`` and every baseline → speedup of the winner, from ``confirmed`` where there is one.
        doubts: why these speedups should be believed less.
        confirmed: the winner measured again after the search, in a new process with other seeds; None when the run
            did not ask for it or the host failed.
        refuted: step id → why a faster candidate that failed then is not the winner.
    """

    task_id: str
    reason: str
    steps: int
    best_step: str = ""
    best_sha256: str = ""
    speedups: Mapping[str, float] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    confirmed: Measurement | None = None
    refuted: Mapping[str, str] = field(default_factory=dict)
