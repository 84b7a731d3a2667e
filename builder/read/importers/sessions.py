"""Sessions of coding agents at work on one kernel file: JSON lines of messages with ``tool_use`` and ``tool_result``.

What stands in the kernel file while a harness runs is a version, and what the harness prints is its verdict. Only
commands that do nothing but run scripts which the agent did not write count, and of what they print only what leaves
no doubt; every other version that was run is quarantined with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from statistics import geometric_mean, median

from artifacts.candidate import Language
from artifacts.features import detect_language
from artifacts.measurement import Outcome
from artifacts.task import slugify, task_at_path
from builder.read.collector import Collector, Importer, LogFile, Run
from builder.read.fields import BadRecordError, Fields, checked_code
from builder.read.files import Probe, UnreadableError, json_lines
from builder.read.verdict import Verdict, metrics_verdict

_NO_TASK = re.compile(r"(?:app|code|home|kernels?|project|repo|root|solutions?|src|te?mp|work(?:space)?)?\d*", re.I)
"""Folders whose name is not that of an operator."""
_FILE = re.compile(r"(?<!python )(?<!python3 )(?<!uv run )\b[\w.-]{1,100}\.\w{1,10}")
_COPY = re.compile(r"\bcp\s+(?:-\w+\s+)*\S+\s+(?=\S)")
_CHANGES = re.compile(
    r">(?!&|\s*/dev/null)|<<|\s-[ci]\b|\b(?:cp|mv|rm|tee|ln|patch)\b|\bgit\s+(?:checkout|restore|stash|reset|apply|revert)"
)
_RUN = (
    r"(?:\w+=\S+\s+)*(?:timeout\s+\w+\s+)?(?:uv run\s+)?(?:python3?\s+(?:-u\s+)?)?[\w./-]+\.(?:py|sh)"
    r"(?:[ \t]+[\w./=:,-]+)*(?:[ \t]+2>&1)?(?:\s*\|\s*(?:tail|head|e?grep)(?:[ \t]+(?:\"[^\"]*\"|'[^']*'|[\w./-]+))*)*"
)
_HARNESS = re.compile(rf"(?:cd\s+\S+\s*(?:&&|;)\s*)?{_RUN}(?:\s*(?:&&|;|\n)\s*(?:{_RUN}|echo\s+[\"'=-]*))*\s*")
"""Commands that print what scripts print and nothing else."""
_LONGEST_RUN = 2_000
_CHOSEN = re.compile(r"shape=\d")
"""Of a filter that shows some of the shapes."""
_SCRIPT = re.compile(r"[\w.-]{1,100}\.(?:py|sh)\b")
_LAUNCHED = re.compile(rf"(?:^|(?:python3?|run|-u|&&|;|\d)\s+)(?:\S*/)?({_SCRIPT.pattern})")

_START = r"^[^\w\n]{0,20}(?:\w{1,20}\] )?"
"""Beginning of a line, also behind a mark like ``[Eval]``."""
_SAID = rf"{_START}correct(?:ness)?\s?[:=]\s?"
_PASSED = re.compile(
    rf"{_START}PASS(?:ED)?[^\w\n]*$|{_SAID}(?i:pass(?:ed)?|true|yes)\b|\bcompiled=True,? correctness=True\b", re.M
)
_FAILED = re.compile(
    rf"{_START}FAIL(?:ED)?\b(?!\W{{0,3}}0\b)|{_SAID}(?i:fail(?:ed)?|false|no)\b|\bcorrectness=False\b", re.M
)
_RAISED = re.compile(r"^[\w.]{0,100}(?:Error|OutOfResources): ", re.M)
_KERNELS_FAULT = re.compile(r"CUDA error|Error building extension|out of resource")
_REFUSED = re.compile(r"forbidden|not allowed|disallowed", re.I)
_SHAPE = re.compile(r"^shape=(\d{1,3}) variant=solution\b.* ms=(\d+\.?\d*)\s*$", re.M)
_ALL_SHAPES = "\npeak_fraction: "
"""What KernelBench-Hard prints of each shape, and behind the last one: its own score is a geometric mean over them."""
_EVALUATED = re.compile(r"\bcorrectness=True\b.{0,2000}?\bruntime=(\d+\.?\d*)")
"""What KernelBench prints of an evaluation, in ms."""
_FIGURE = re.compile(
    rf"{_START}([A-Za-z][\w ()-]{{0,40}}?)[ \t]?[:=][ \t]*(\d+\.?\d*(?:e-?\d+)?)[ \t]?(ns|us|ms)?[ \t]*$", re.M
)
_NO_TIME = re.compile(r"_s$|elapsed|total|warm|load")
"""Figures of a harness about itself."""
_APART = 1.2
"""Repeated timings of one version that differ by more than this factor are not of one thing."""
_ERROR_CHARS = 4000


@dataclass(frozen=True, slots=True)
class _Deed:
    """Something that the agent said or did.

    Attributes:
        tool: ``said``, ``lost`` (a line that cannot be read), or a tool in lower case.
        path: the file that a write is about.
        text: what was said, the command, or the whole file that was written.
        edits: old text, new text and whether all places of it change.
        answer: what came back.
    """

    line: int
    tool: str
    path: str = ""
    text: str = ""
    edits: tuple[tuple[str, str, bool], ...] = ()
    answer: str = ""
    failed: bool = False

    @classmethod
    def of(cls, line: int, tool: str, given: Fields, answer: str, failed: bool) -> _Deed:
        """A call of ``tool`` with what came back."""
        if tool not in ("write", "edit", "multiedit"):
            return cls(line, tool, text=given.text("command") if tool == "bash" else "", answer=answer)
        edits = [Fields.of(edit, "edit") for edit in given.items("edits") or [given.data]]
        return cls(
            line,
            tool,
            given.text("file_path"),
            given.code("content"),
            tuple((edit.code("old_string"), edit.code("new_string"), bool(edit.flag("replace_all"))) for edit in edits),
            answer,
            failed,
        )

    def after(self, before: str | None) -> str | None:
        """The file after this write; None when that cannot be known."""
        if self.failed:
            return None if "modified" in self.answer else before
        if self.tool == "write":
            return self.text
        for old, new, everywhere in self.edits:
            if before is None or not old or not (before.count(old) == 1 or (everywhere and old in before)):
                return None
            before = before.replace(old, new)
        return before


@dataclass(slots=True)
class _Session:
    """What the messages hold, in their order; a call counts once its answer says whether it was carried out."""

    deeds: list[_Deed] = field(default_factory=list)
    asked: str = ""
    model: str = ""
    name: str = ""
    _calls: dict[str, Fields] = field(default_factory=dict)

    def message(self, line: int, record: Fields) -> None:
        """Take one line."""
        self.name = self.name or record.text("sessionId", "session_id")
        message, user = record.child("message"), record.get("type") == "user"
        self.model = self.model or message.text("model")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else message.items("content")
        for block in map(Fields.of, blocks):
            kind = block.get("type")
            if kind == "text" and user:
                self.asked = self.asked or block.text("text")
            elif kind == "text" and not record.flag("isSidechain"):
                self.deeds.append(_Deed(line, "said", text=block.text("text")))
            elif kind == "tool_use":
                self._calls[block.word("id")] = block
            elif kind == "tool_result":
                self._answer(line, block)

    def _answer(self, line: int, block: Fields) -> None:
        call, said = self._calls.pop(block.word("tool_use_id"), Fields({})), block.get("content")
        parts = map(Fields.of, said if isinstance(said, list) else [{"text": said}])
        answer, failed = "\n".join(part.text("text") for part in parts), bool(block.flag("is_error"))
        self.deeds.append(_Deed.of(line, call.word("name").lower(), call.child("input"), answer, failed))

    def kernel(self) -> str:
        """The path of the one kernel file: the one that the task names, or the only one.

        Raises:
            BadRecordError: there is none, or several and the task does not say which counts.
        """
        written = ((deed.path, "\n".join((deed.text, *(edit[1] for edit in deed.edits)))) for deed in self.deeds)
        found = {path for path, text in written if path and detect_language(text) is not Language.TORCH}
        named = {path for path in found if PurePosixPath(path).name in self.asked} or found
        if len(named) != 1:
            raise BadRecordError(f"{len(named)} files with kernels were written: which one counts is not known")
        return named.pop()


@dataclass(slots=True)
class _Version:
    """What stood in the kernel file while harnesses ran; ``code`` is None when that is not known."""

    code: str | None = None
    line: int | None = None
    plan: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)


def _versions(deeds: Iterable[_Deed], kernel: str) -> Iterator[_Version]:
    """Versions that a harness was run on; edits between two runs are one step."""
    own, said, now = set[str](), "", _Version()
    for deed in deeds:
        after = now.code
        if deed.path == kernel:
            after = deed.after(now.code)
        elif deed.path:
            own.add(PurePosixPath(deed.path).name)
        elif deed.tool == "bash":
            after = _commanded(deed, now, own, PurePosixPath(kernel).name)
        elif deed.tool == "said":
            said = deed.text
        elif deed.tool == "lost":
            after = None
        if after != now.code:
            if now.printed:
                yield now
                now = _Version()
            now.code, now.line = after, deed.line
            now.plan += [said] * bool(deed.path)
            said = ""
    if now.printed:
        yield now


def _commanded(deed: _Deed, now: _Version, own: set[str], kernel: str) -> str | None:
    """The kernel file after a command; what a harness printed goes to ``now``, names of changed files to ``own``."""
    command = deed.text.strip()
    plain = len(command) <= _LONGEST_RUN and _HARNESS.fullmatch(command) and not _CHOSEN.search(command)
    if now.line and plain and own.isdisjoint(_SCRIPT.findall(command)) and kernel not in _LAUNCHED.findall(command):
        now.printed.append(deed.answer)
        return now.code
    changes: list[str] = _CHANGES.findall(command)
    if not changes:
        return now.code
    changed = set(_FILE.findall(_COPY.sub("cp ", command)))
    own |= changed - {kernel}
    return None if kernel in changed or any(change.startswith("git") for change in changes) else now.code


def _verdict(text: str, kernel: str) -> Verdict:
    """What all runs of one version printed, as a verdict.

    Raises:
        BadRecordError: nothing that can be read surely, or one run contradicts another.
    """
    passed, failed = _PASSED.search(text), _FAILED.search(text)
    raised = _RAISED.search(text) and (f'{kernel}", line' in text or _KERNELS_FAULT.search(text))
    if passed and (failed or raised):
        raise BadRecordError("the harness both passed and failed this version")
    if not (passed or failed or raised):
        raise BadRecordError("the harness printed no verdict that can be read")
    if passed:
        return metrics_verdict(Fields({**_times(text), "correct": True}))
    telling = failed or list(_RAISED.finditer(text))[-1]
    error = text[telling.start() :].partition("Compile with `TORCH_USE_CUDA_DSA`")[0][:_ERROR_CHARS].strip()
    verdict = Verdict.of(False, error)
    if _REFUSED.search(error.partition("\n")[0]):
        return replace(verdict, outcome=Outcome.REJECTED)
    unnamed = raised and not failed and verdict.outcome is Outcome.WRONG_RESULT
    return replace(verdict, outcome=Outcome.RUNTIME_ERROR) if unnamed else verdict


def _times(text: str) -> dict[str, float]:
    """Times and ratios by name, with the unit at its end.

    Raises:
        BadRecordError: one name stands for values that are far apart.
    """
    found: dict[str, list[float]] = {}
    for name, value, unit in _FIGURE.findall(text):
        label = "_".join(filter(None, (slugify(name), unit)))
        if not _NO_TIME.search(label):
            found.setdefault(label, []).append(float(value))
    for value in _EVALUATED.findall(text):
        found.setdefault("runtime_ms", []).append(float(value))
    shapes: dict[int, list[float]] = {}
    for shape, value in _SHAPE.findall(text):
        shapes.setdefault(int(shape), []).append(float(value))
    if shapes and set(shapes) == set(range(len(shapes))) and all(map(min, shapes.values())) and _ALL_SHAPES in text:
        found["geomean_ms"] = [geometric_mean(map(median, shapes.values()))]
    for label, values in found.items():
        if max(values) > _APART * min(values) and re.search(r"_(?:ns|us|ms)$|^speedup$", label):
            raise BadRecordError(f"{label} is printed with values far apart")
    return {label: median(values) for label, values in found.items()}


def _claims(probe: Probe) -> bool:
    return {"type", "message", "role", "content", "tool_use_id"} <= probe.fields


def _read(log: LogFile, collector: Collector) -> None:
    """One trajectory: each version continues the one before."""
    session = _Session()
    for line, value in json_lines(log.path):
        try:
            if isinstance(value, UnreadableError):
                raise value
            session.message(line, Fields.of(value))
        except (BadRecordError, UnreadableError) as problem:
            session.deeds.append(_Deed(line, "lost"))
            collector.refuse(line, str(problem), count=True)
            if collector.gives_up(line):
                return
    try:
        kernel = session.kernel()
    except BadRecordError as problem:
        collector.refuse(None, str(problem), count=True)
        return
    _enter(session, kernel, log, collector)


def _enter(session: _Session, kernel: str, log: LogFile, collector: Collector) -> None:
    folder, name = PurePosixPath(kernel).parent.name, PurePosixPath(kernel).name
    run = Run(
        key=session.name or "session",
        source=f"{log.format}/{log.path.parent.name}",
        task=task_at_path(log.path.name.split(".", 1)[0] if _NO_TASK.fullmatch(folder) else folder),
        llm=session.model,
    )
    parent: str | None = None
    for index, version in enumerate(_versions(session.deeds, kernel)):
        with collector.record(version.line):
            if version.code is None:
                raise BadRecordError("a command changed the kernel file: what was measured is not known")
            if any(_needs(version.code, PurePosixPath(deed.path)) for deed in session.deeds if deed.path != kernel):
                raise BadRecordError("the kernel needs other files that the agent wrote: its code is not whole")
            code, verdict = checked_code(version.code, name), _verdict("\n".join(version.printed), name)
            plan = "\n".join(filter(None, version.plan))
            step = collector.step(
                version.line, verdict, code, step_id=str(index), parent_id=parent, index=index, plan=plan
            )
            collector.add(run, step)
            parent = step.step_id
    if not collector.records:
        collector.refuse(None, "no version of the kernel was run by a harness that the agent did not write", count=True)


def _needs(code: str, other: PurePosixPath) -> bool:
    """Whether a source imports or names another file."""
    if other.suffix != ".py":
        return bool(other.suffix) and other.name in code
    return re.search(rf"\b(?:import|from)\s+{re.escape(other.stem)}\b", code) is not None


IMPORTER = Importer(
    name="agent-session",
    version=1,
    summary="a coding agent's session on one kernel file, as JSON lines; runs of its own scripts do not count",
    claims=_claims,
    read=_read,
)
