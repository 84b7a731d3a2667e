from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from artifacts.errors import BadInputError
from builder.cluster.clustering import PLAIN_TEXTS, cluster_texts
from builder.cluster.record import ClusterSettings, Labels
from builder.cluster.scoring import seeds
from builder.embed.encoders import Embedder
from pipeline.commands.memory_cluster import command, read_texts


def test_each_text_gets_one_line_with_hash_direction_and_strategy(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('Use float4 loads\n{"text": "Unroll the inner loop", "label": 1}\n', encoding="utf-8")
    result = CliRunner().invoke(command, [str(file), "--model", "hashing", "--cache", str(tmp_path / "v.sqlite")])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["sha256"] for row in rows] == [
        hashlib.sha256(text.encode()).hexdigest() for text in ("Use float4 loads", "Unroll the inner loop")
    ]
    assert [row["strategy"] for row in rows] == [
        "memory_access.vectorized_access",
        "instruction_throughput.loop_unrolling",
    ]
    assert {row["direction"] for row in rows} <= {seed.direction_id for seed in seeds()}


def test_blank_lines_are_skipped_and_braces_may_begin_a_text(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text('\n{ not json\n  plain \n{"text": "two\\nlines"}\n', encoding="utf-8")
    assert list(read_texts(file)) == ["{ not json", "plain", "two\nlines"]


def test_an_empty_text_in_json_is_a_text_and_a_byte_order_mark_is_none(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('Use float4 loads\n{"text": ""}\n', encoding="utf-8-sig")
    assert list(read_texts(file)) == ["Use float4 loads", ""]
    result = CliRunner().invoke(command, [str(file), "--model", "hashing"], catch_exceptions=False)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["sha256"] for row in rows] == [
        hashlib.sha256(text.encode()).hexdigest() for text in ("Use float4 loads", "")
    ]
    assert rows[1]["direction"] == "unclassified"


def test_the_command_groups_with_the_settings_that_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("Use float4 loads\n", encoding="utf-8")
    seen: list[ClusterSettings] = []
    grouped = cluster_texts

    def spy(texts: Sequence[str], embedder: Embedder, settings: ClusterSettings) -> Labels:
        seen.append(settings)
        return grouped(texts, embedder, settings)

    monkeypatch.setattr("builder.cluster.clustering.cluster_texts", spy)
    CliRunner().invoke(command, [str(file), "--model", "hashing", "--seed", "3"], catch_exceptions=False)
    assert seen == [replace(PLAIN_TEXTS, seed=3)]


def test_a_json_line_without_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"text": "a"}\n{"txt": "b"}\n', encoding="utf-8")
    with pytest.raises(BadInputError, match=":2"):
        list(read_texts(file))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot read"):
        list(read_texts(tmp_path / "missing.txt"))
