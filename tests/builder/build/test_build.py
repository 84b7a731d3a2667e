import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from artifacts.errors import BadInputError
from artifacts.measurement import Outcome
from artifacts.memory.schemas import SCHEMAS
from artifacts.memory.store import MemoryStore
from artifacts.trajectory import TrustFlag
from builder import build as stages
from builder.build import BuildSettings, build, publish
from builder.describe import logs as describing
from builder.describe.raw_transitions import weight
from builder.embed.encoders import HashingEmbedder, Vectors

Run = Callable[[Path, str, str], Path]


class CountingEmbedder:
    """Counts the texts that reach the encoder."""

    def __init__(self) -> None:
        self.inner = HashingEmbedder(dimensions=64)
        self.texts: list[str] = []

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def sha256(self) -> str:
        return self.inner.sha256

    def encode(self, texts: Sequence[str]) -> Vectors:
        self.texts += texts
        return self.inner.encode(texts)


def settings(cache: Path | None = None) -> BuildSettings:
    return BuildSettings(name="demo", model="hashing", cache=cache)


def files_of(store: MemoryStore, version: str) -> dict[str, bytes]:
    return {name: store.files.read("demo", version, f"{name}.parquet") for name in SCHEMAS}


def test_runs_become_transitions_with_rewards_and_failures(logs: Path) -> None:
    memory = build([logs], settings()).memory
    found = list(memory.transitions())
    # Three runs, and in each two steps of four children; the first step has no parent.
    assert len(found) == 24
    failed = [item for item in found if item.outcome is not Outcome.CORRECT]
    assert len(failed) == 6
    assert all(item.reward is None and item.error for item in failed)
    for item in found:
        if item.reward is not None:
            assert item.parent_us is not None
            assert item.child_us is not None
            assert 2**item.reward == pytest.approx(item.parent_us / item.child_us)
            assert item.expected is not None
    assert {
        len({t.siblings for t in found if t.trajectory_id == name}) for name in {t.trajectory_id for t in found}
    } == {2}


def test_histories_are_the_directions_taken(logs: Path) -> None:
    memory = build([logs], settings()).memory
    rows = {item.transition_id: item for item in memory.transitions()}
    later = [item for item in rows.values() if item.provenance and item.state.step == 2]
    assert later
    for item in later:
        parent = next(
            row
            for row in rows.values()
            if row.child_sha256 == item.parent_sha256 and row.trajectory_id == item.trajectory_id
        )
        assert item.state.history == (*parent.state.history, *([parent.direction_id] if parent.direction_id else []))


def test_a_logged_probability_is_kept_where_the_step_took_the_direction_that_was_chosen(logs: Path) -> None:
    found = list(build([logs], settings()).memory.transitions())
    taken = [item for item in found if item.direction_id == "memory_access"]
    assert 0 < len(taken) < len(found)
    assert {item.choice_probability for item in taken} == {0.5}
    assert {item.choice_probability for item in found if item not in taken} == {None}


def test_an_added_log_is_the_only_one_read_and_embedded_and_the_bytes_are_those_of_a_full_build(
    tmp_path: Path, logs: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    encoder = CountingEmbedder()
    monkeypatch.setattr(stages, "named_embedder", lambda name: encoder)
    build([logs], settings(cache))
    encoder.texts.clear()
    run(logs, "four", "24_log_softmax.py")
    read: list[str] = []
    plain = describing.read
    monkeypatch.setattr(describing, "read", lambda log, digest: read.append(log.name) or plain(log, digest))
    added = build([logs], settings(cache))
    assert read == ["four"]
    assert added.read == ("four",)
    assert len(added.reused) == 3
    assert not encoder.texts  # the new run says nothing that was not said before
    full = build([logs], settings())
    stores = [MemoryStore(str(tmp_path / name)) for name in ("added", "full")]
    versions = [publish(item.memory, store).version for item, store in zip((added, full), stores, strict=True)]
    assert versions[0] == versions[1]
    assert files_of(stores[0], versions[0]) == files_of(stores[1], versions[1])


def test_the_order_of_paths_does_not_matter(logs: Path, tmp_path: Path) -> None:
    parts = sorted(logs.iterdir())
    store = MemoryStore(str(tmp_path / "store"))
    forward = publish(build(parts, settings()).memory, store)
    backward = publish(build(parts[::-1], settings()).memory, store)
    assert forward.version == backward.version


def test_a_damaged_cache_entry_is_made_anew(logs: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    before = build([logs], settings(cache))
    for entry in (cache / "described").iterdir():
        data = bytearray(entry.read_bytes())
        data[-10] ^= 1
        entry.write_bytes(bytes(data))
    after = build([logs], settings(cache))
    assert not after.reused
    assert after.memory.table.equals(before.memory.table)


def test_a_repeated_log_counts_once(logs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.txt"
    copy.mkdir()
    once = build([logs], settings())
    twice = build([logs, logs], settings())
    assert len(once.memory) == len(twice.memory)


def test_a_change_of_anything_that_reading_rests_on_forgets_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    before = describing.fingerprint()
    plain = Path.read_bytes
    for name in ("device.py", "task.py", "task_bytes.py", "kernelbench_tasks.txt", "trust.py", "tables.py"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", lambda path, name=name: plain(path) + b"#" * (path.name == name))
            assert describing.fingerprint() != before
    assert describing.fingerprint() == before


def test_edges_that_two_logs_share_count_less_in_the_second_however_the_build_came_about(
    tmp_path: Path, logs: Path, run: Run
) -> None:
    cache = tmp_path / "cache"
    plain = build([logs], settings(cache)).memory
    assert not any(TrustFlag.DUPLICATED in item.flags for item in plain.transitions())
    run(logs, "two_again", "19_relu.py")
    added = build([logs], settings(cache)).memory
    assert added.table.equals(build([logs], settings()).memory.table)
    relu = [item for item in added.transitions() if "relu" in item.task.task_id]
    assert len({item.trajectory_id for item in relu}) == 2
    second = max(item.trajectory_id for item in relu)
    for item in added.transitions():
        repeats = item.trajectory_id == second and item.outcome is Outcome.CORRECT
        assert (TrustFlag.DUPLICATED in item.flags) is repeats
        assert item.weight == weight(item.flags)


def test_logs_without_a_step_that_has_a_parent_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing to mine")
    with pytest.raises(BadInputError):
        build([tmp_path], settings())


def test_statements_of_a_strategy_can_be_traced(logs: Path) -> None:
    memory = build([logs], settings()).memory
    rows = {item.transition_id: item for item in memory.transitions()}
    told = [strategy for strategy in memory.strategies if strategy.template]
    assert told
    for strategy in memory.strategies:
        assert {rows[name].strategy_id for name in strategy.evidence} == {strategy.strategy_id}
        for excerpt in strategy.templates:
            reward = rows[excerpt.transition_id].reward
            assert reward is not None
            assert reward > 0
        for risk, evidence in zip(strategy.risks, strategy.risk_evidence, strict=True):
            assert risk.startswith("You cannot")
            assert all(rows[name].outcome is not Outcome.CORRECT for name in evidence)


def test_shards_that_are_described_apart_and_in_any_order_make_the_same_memory(logs: Path) -> None:
    alone = build([logs], settings()).memory
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        shards = [(log,) for shard in stages.read([logs]) for log in shard]
        described = list(pool.map(partial(stages.describe, settings=settings()), shards[::-1]))
    corpus = stages.gathered(described)
    together = stages.link(corpus, stages.cluster(corpus, settings()), settings())
    assert together.table.equals(alone.table)
    assert together.strategies == alone.strategies
