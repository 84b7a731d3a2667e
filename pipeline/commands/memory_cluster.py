"""``htam memory cluster-text``: direction and strategy of each text in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from artifacts.errors import BadInputError


@click.command(name="cluster-text")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--model", default=None, help="Encoder: hub name, folder, or hashing for none; default: the packaged one."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the clustering.")
@click.option(
    "--cache", type=click.Path(path_type=Path, dir_okay=False), default=None, help="File that keeps embeddings."
)
def command(file: Path, model: str | None, seed: int, cache: Path | None) -> None:
    """Assign each text in FILE to a direction and a strategy.

    FILE has one text a line, or one JSON object a line with the key "text". One JSON object a text comes out, in
    order: sha256 (of the text), direction, strategy.

    \b
    Examples:
      htam memory cluster-text texts.jsonl --cache vectors.sqlite
    """
    texts = list(read_texts(file))
    from builder.cluster.clustering import PLAIN_TEXTS, cluster_texts
    from builder.cluster.record import UNCLASSIFIED
    from builder.embed.cache import CachedEmbedder
    from builder.embed.encoders import DEFAULT_MODEL, named_embedder

    embedder = named_embedder(model or DEFAULT_MODEL)
    if cache is not None:
        embedder = CachedEmbedder(inner=embedder, path=cache)
    found = cluster_texts(texts, embedder, replace(PLAIN_TEXTS, seed=seed))
    for text, direction, strategy in zip(texts, found.direction_ids, found.strategy_ids, strict=True):
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        click.echo(
            json.dumps({"sha256": digest, "direction": direction or UNCLASSIFIED, "strategy": strategy or UNCLASSIFIED})
        )


def read_texts(file: Path) -> Iterator[str]:
    """Texts of a file of plain or JSON lines; blank lines are skipped, an empty text in JSON is a text.

    Raises:
        BadInputError: the file cannot be read, or a JSON line has no text.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInputError(f"cannot read {file}: {problem}", "give a UTF-8 text file") from problem
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _text(line, f"{file}:{number}")


def _text(line: str, where: str) -> str:
    if not line.lstrip().startswith("{"):
        return line.strip()
    try:
        record = json.loads(line)
    except ValueError:
        return line.strip()  # a plain text may begin with a brace
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise BadInputError(f'{where}: JSON line without "text"', 'write {"text": "..."} on each line')
    return str(record["text"])
