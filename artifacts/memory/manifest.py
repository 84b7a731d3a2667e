"""The manifest of a memory version: what it holds, what it was made of, how good it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from artifacts.codec import decode, encode
from artifacts.errors import ArtifactError, BadInputError
from artifacts.memory.expectation import Expectation
from artifacts.memory.schemas import SCHEMA_VERSION

OWN_HASH = "manifest_sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """Integrity of one file: SHA-256 and size of its bytes; ``content`` is the canonical hash of its rows."""

    sha256: str
    content: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLog:
    """A log that was mined: its path below the log root and the SHA-256 of its bytes."""

    file: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """The encoder that the clusters rest on."""

    name: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingQuality:
    """How well a memory ranked directions or strategies at recorded choices of operators it had not seen.

    Attributes:
        level: ``direction`` or ``strategy``.
        decision_points: recorded choices with two options or more.
        regret: mean log2 gain lost against the best option tried; ``regret_no_direction``: by a choice at random.
        ndcg, hit3, pairwise: 0..1, see :mod:`builder.validate.replay`; None where no choice allows it.
        margin: share of the no-direction baseline's regret that the memory saves; ``margin_interval``: its 95 %
            interval over tasks, None below three tasks.
        chance: probability that its labels, permuted, rank as well.
    """

    level: str
    decision_points: int
    regret: float
    regret_no_direction: float
    ndcg: float | None = None
    hit3: float | None = None
    pairwise: float | None = None
    margin: float | None = None
    margin_interval: tuple[float, float] | None = None
    chance: float | None = None

    @property
    def ranks(self) -> bool:
        """Whether the ranking is better than that of permuted labels, one-sided at 5 %."""
        return self.chance is not None and self.chance <= 0.05

    @staticmethod
    def plural(level: str) -> str:
        """What a level is of."""
        return {"direction": "directions", "strategy": "strategies"}[level]

    @property
    def what(self) -> str:
        """Plural of the level."""
        return self.plural(self.level)

    @property
    def saved(self) -> str:
        """The margin over the no-direction baseline with its interval; empty where it is not known."""
        if self.margin is None:
            return ""
        bounds = "" if self.margin_interval is None else " [{:+.0%}, {:+.0%}]".format(*self.margin_interval)
        return f"{self.margin:+.0%}{bounds}"

    @property
    def line(self) -> str:
        """All of it on one line."""
        named = {"ndcg": self.ndcg, "hit@3": self.hit3, "pairs": self.pairwise}
        parts = [f"regret {self.regret:.3f} log2, no direction {self.regret_no_direction:.3f}"]
        parts += [f"saved {self.saved}"] if self.saved else []
        parts += [f"{name} {value:.3f}" for name, value in named.items() if value is not None]
        if self.chance is not None and not self.ranks:
            parts.append(
                f"no better than permuted labels (p = {self.chance:.2f}): good for fixes and kernels, not to rank"
            )
        return f"{self.what}, {self.decision_points} held-out choices: {', '.join(parts)}"

    def moved_to(self, new: RankingQuality) -> str:
        """What changed from this version's figures to another's, on one line."""
        return (
            f"{new.what}: saved {self.saved or 'unknown'} → {new.saved or 'unknown'}, regret {self.regret:.3f} → "
            f"{new.regret:.3f} (no direction {self.regret_no_direction:.3f} → {new.regret_no_direction:.3f}), "
            f"{self.decision_points} → {new.decision_points} choices"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a memory version says of itself.

    Attributes:
        schema_version: what the files were written in.
        version: first 16 hex digits of the identity, see :meth:`identity`.
        settings: builder settings; ``scorer``: the attention settings that replay chose.
        expectation: what the state predicts; fitted from the rows, so not part of the identity.
        parent: version that was ``latest`` before; not part of the identity.
        libraries: versions of what wrote the files; not part of the identity.
        quality: figures from replay, one record a level that the logs hold choices of.
    """

    name: str
    version: str = ""
    schema_version: int = SCHEMA_VERSION
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    scorer: Mapping[str, Any] = field(default_factory=dict)
    embedding: Embedding = field(default_factory=Embedding)
    inputs: tuple[InputLog, ...] = ()
    quality: tuple[RankingQuality, ...] = ()
    quarantined: int = 0
    expectation: Expectation | None = None
    parent: str | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)

    def identity(self) -> str:
        """SHA-256 over the rows, settings, encoder, inputs and figures: equal content gives an equal version."""
        content = {name: entry.content for name, entry in self.files.items()}
        parts = [content, self.settings, self.scorer, self.embedding, self.inputs, self.quality, self.quarantined]
        return hashlib.sha256(_canonical([encode(part) for part in parts])).hexdigest()

    def sealed(self) -> Manifest:
        """The same manifest with its version filled in."""
        return replace(self, version=self.identity()[:16])


def manifest_bytes(manifest: Manifest) -> bytes:
    """Canonical JSON of ``manifest`` with its own hash."""
    body = encode(manifest)
    return _canonical(body | {OWN_HASH: hashlib.sha256(_canonical(body)).hexdigest()})


def read_manifest(data: bytes, where: str) -> Manifest:
    """Inverse of :func:`manifest_bytes`.

    Raises:
        ArtifactError: not JSON, changed since it was written, or of another schema version.
    """
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise ArtifactError(
            f"{where}: the manifest is damaged ({problem})", "restore it or rebuild the memory"
        ) from None
    if not isinstance(parsed, dict) or OWN_HASH not in parsed:
        raise ArtifactError(f"{where}: this is not a memory manifest", "name a published memory")
    body = {name: value for name, value in parsed.items() if name != OWN_HASH}
    if parsed[OWN_HASH] != hashlib.sha256(_canonical(body)).hexdigest() or _canonical(parsed) != data:
        raise ArtifactError(
            f"{where}: the manifest was changed after it was written", "restore it or rebuild the memory"
        )
    version = body.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise ArtifactError(
            f"{where}: schema version {version!r} is unknown (this release reads {SCHEMA_VERSION})",
            "rebuild the memory from its logs",
        )
    try:
        return decode(Manifest, body)
    except BadInputError as problem:
        raise ArtifactError(f"{where}: {problem.what}", "rebuild the memory with this release") from problem


def _canonical(value: object) -> bytes:
    return (json.dumps(value, sort_keys=True, ensure_ascii=True, indent=1, allow_nan=False) + "\n").encode()


def moved(before: Manifest, after: Manifest) -> tuple[str, ...]:
    """What changed from one manifest's replay figures to another's, a line a level that both have."""
    old = {item.level: item for item in before.quality}
    return tuple(old[new.level].moved_to(new) for new in after.quality if new.level in old and new != old[new.level])
