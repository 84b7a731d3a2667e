"""Clustering against hand labels, plain k-means, other seeds, resampling and scale, in one run.

    python -P benchmarks/clustering.py LABELS [--corpus FILE] [--scale 1000000] [--write]

    python -P benchmarks/clustering.py --steps LOGS... [--cache FILE] [--write]

The second form clusters the steps of LOGS as a builder does, by text and code difference, and compares with
benchmarks/step_labels.json: a free word for the main intent of 200 texts, drawn over six sources and labelled before
any clustering of them was looked at. Only hashes and words are shipped. TUNED names the sources whose texts the
taxonomy was extended for afterwards; the confusions of all six were seen then.

LABELS has one JSON object a line: text, direction, strategy, and optionally split. CORPUS has one with text a line; it
is clustered along with the labelled texts, as a builder would. Neither is shipped: they are texts of other people's
logs. The result holds figures only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from runner import write_results  # noqa: E402
from sklearn.cluster import KMeans  # noqa: E402
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score  # noqa: E402

from builder.build import BuildSettings, describe, gathered, read  # noqa: E402
from builder.cluster.clustering import PLAIN_TEXTS, cluster, cluster_texts, distinct_actions  # noqa: E402
from builder.cluster.record import Labels  # noqa: E402
from builder.cluster.scoring import seeds, taxonomy_sha256  # noqa: E402
from builder.describe.glossary import glossary_sha256  # noqa: E402
from builder.embed.cache import CachedEmbedder  # noqa: E402
from builder.embed.encoders import Embedder, HashingEmbedder, SentenceTransformerEmbedder  # noqa: E402

KINDS = ("direction", "strategy")
CLUSTERS = (8, 11, 14, 20, 30, 40, 60)


STEP_LABELS = REPOSITORY / "benchmarks" / "step_labels.json"
TUNED = ("cuda-l1", "htam", "kernelbench-agentic")


def steps(logs: Sequence[Path], embedder: Embedder) -> dict[str, Any]:
    """Adjusted mutual information of directions and strategies of recorded steps with the labels, by source."""
    settings = BuildSettings(name="benchmark")
    table = gathered([describe(shard, settings) for shard in read(logs)]).table
    actions, rows = distinct_actions(table)
    found = cluster(actions, embedder)
    labels = json.loads(STEP_LABELS.read_text("utf-8"))
    plans = {
        hashlib.sha256(action.text.encode("utf-8", "surrogatepass")).hexdigest(): number
        for number, action in reversed(list(enumerate(actions)))
    }
    known = {sha: entry for sha, entry in labels.items() if sha in plans}
    sources = sorted({entry["source"] for entry in known.values()})

    def information(kind: str, wanted: Sequence[str]) -> float:
        chosen = [sha for sha, entry in known.items() if entry["source"] in wanted]
        said = [getattr(found, f"{kind}_ids")[plans[sha]] for sha in chosen]
        return float(adjusted_mutual_info_score([known[sha]["label"] for sha in chosen], said))

    result: dict[str, Any] = {"texts": len(known), "distinct_actions": len(actions), "steps": len(rows), "tuned": TUNED}
    for kind in KINDS:
        alone = {source: round(information(kind, [source]), 3) for source in sources}
        groups = {"all": sources, "tuned": TUNED, "others": [name for name in sources if name not in TUNED]}
        result[kind] = {
            **{name: round(information(kind, wanted), 3) for name, wanted in groups.items()},
            "mean_over_sources": round(statistics.mean(alone.values()), 3),
            "sources": alone,
        }
        print(kind, result[kind])
    return result


def report_steps(logs: Sequence[Path], cache: Path | None, *, write: bool) -> None:
    """The second form of the command."""
    embedder: Embedder = SentenceTransformerEmbedder()
    figures = settings_of(STEP_LABELS) | steps(logs, CachedEmbedder(inner=embedder, path=cache) if cache else embedder)
    if write:
        print(f"written to {write_results('step_clustering', figures).name}")


def read_rows(path: Path) -> list[dict[str, str]]:
    """JSON lines of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def labels_of(found: Labels, count: int, kind: str) -> list[str]:
    """Ids of the first ``count`` texts."""
    return list(getattr(found, f"{kind}_ids")[:count])


def ours(rows: Sequence[dict[str, str]], corpus: Sequence[str], embedder: Embedder) -> dict[str, float]:
    """Adjusted mutual information of our directions and strategies with the labels."""
    found = cluster_texts([row["text"] for row in rows] + list(corpus), embedder)
    return {
        kind: adjusted_mutual_info_score([row[kind] for row in rows], labels_of(found, len(rows), kind))
        for kind in KINDS
    }


def kmeans(rows: Sequence[dict[str, str]], embedder: Embedder) -> dict[str, dict[str, float]]:
    """The same for k-means on the encoder's plain vectors, mean of three seeds, for several k."""
    vectors = embedder.encode([row["text"] for row in rows])
    result: dict[str, dict[str, float]] = {}
    for count in CLUSTERS:
        runs = [KMeans(count, n_init=10, random_state=seed).fit_predict(vectors) for seed in range(3)]
        result[str(count)] = {
            kind: statistics.mean(adjusted_mutual_info_score([row[kind] for row in rows], run) for run in runs)
            for kind in KINDS
        }
    return result


def stability(texts: Sequence[str], embedder: Embedder) -> dict[str, dict[str, list[float]]]:
    """Adjusted Rand index of other seeds and of 80 % samples with the plain run."""
    base = cluster_texts(texts, embedder)
    seeds_: dict[str, list[float]] = {kind: [] for kind in KINDS}
    samples: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for seed in range(1, 6):
        other = cluster_texts(texts, embedder, replace(PLAIN_TEXTS, seed=seed))
        rows = sorted(random.Random(seed).sample(range(len(texts)), int(0.8 * len(texts))))
        part = cluster_texts([texts[row] for row in rows], embedder)
        for kind in KINDS:
            whole = labels_of(base, len(texts), kind)
            seeds_[kind].append(adjusted_rand_score(whole, labels_of(other, len(texts), kind)))
            kept = [whole[row] for row in rows]
            samples[kind].append(adjusted_rand_score(kept, labels_of(part, len(rows), kind)))
    return {"other_seeds": seeds_, "samples_of_80_percent": samples}


def scale(count: int, distinct: int) -> dict[str, float]:
    """Seconds for ``count`` texts of which ``distinct`` differ, with the hashing encoder: all but real encoding."""
    wordings = [wording for seed in seeds() for wording in seed.examples]
    pool = [f"{wordings[row % len(wordings)]} in variant {row} of the kernel" for row in range(distinct)]
    texts = random.Random(0).choices(pool, k=count)
    begin = time.perf_counter()
    found = cluster_texts(texts, HashingEmbedder())
    return {
        "texts": count,
        "distinct": distinct,
        "seconds": round(time.perf_counter() - begin, 1),
        "strategies": len(found.strategies),
    }


def throughput(texts: Sequence[str]) -> dict[str, float]:
    """Texts a second of the default encoder on distinct texts."""
    unique = list(dict.fromkeys(texts))[:300]
    embedder = SentenceTransformerEmbedder()
    embedder.encode(["warm up"])
    begin = time.perf_counter()
    embedder.encode(unique)
    return {"texts": len(unique), "texts_per_second": round(len(unique) / (time.perf_counter() - begin), 1)}


def settings_of(labels: Path) -> dict[str, Any]:
    """What a reader needs to verifier the figures."""
    return {
        "labels_sha256": hashlib.sha256(labels.read_bytes()).hexdigest(),
        "settings": asdict(PLAIN_TEXTS),
        "glossary_sha256": glossary_sha256(),
        "taxonomy_sha256": taxonomy_sha256(),
        "versions": {name: version(name) for name in ("faiss-cpu", "networkx", "sentence-transformers", "torch")},
    }


def main() -> None:
    """Run everything and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("labels", type=Path, nargs="?")
    parser.add_argument("--steps", type=Path, nargs="+", metavar="LOGS")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--scale", type=int, default=0)
    parser.add_argument("--distinct", type=int, default=10_000)
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results/clustering.json")
    options = parser.parse_args()
    if options.steps:
        report_steps(options.steps, options.cache, write=options.write)
        return
    rows = read_rows(options.labels)
    corpus = [row["text"] for row in read_rows(options.corpus)] if options.corpus else []
    embedder: Embedder = SentenceTransformerEmbedder()
    if options.cache:
        embedder = CachedEmbedder(inner=embedder, path=options.cache)
    result: dict[str, Any] = {**settings_of(options.labels), "encoder_sha256": embedder.sha256, "ami": {}}
    splits = sorted({row.get("split", "all") for row in rows} | {"all"})
    for split in splits:
        part = [row for row in rows if split in ("all", row.get("split", "all"))]
        figures: dict[str, Any] = {
            "texts": len(part),
            "kmeans": kmeans(part, embedder),
            "alone": ours(part, [], embedder),
        }
        if corpus:
            figures["with_corpus"] = ours(part, corpus, embedder)
        result["ami"][split] = figures
        best = {kind: max(run[kind] for run in figures["kmeans"].values()) for kind in KINDS}
        for name in ("alone", "with_corpus"):
            if name in figures:
                line = "  ".join(f"{kind} {figures[name][kind]:.3f} (k-means {best[kind]:.3f})" for kind in KINDS)
                print(f"{split:5} {len(part):4} texts, {name:12} {line}")
    result["stability"] = stability(corpus or [row["text"] for row in rows], embedder)
    for name, kinds in result["stability"].items():
        print(f"{name:22} " + "  ".join(f"{kind} >= {min(values):.3f}" for kind, values in kinds.items()))
    result["encoding"] = throughput([row["text"] for row in rows])
    print(f"encoding {result['encoding']['texts_per_second']} texts/s")
    if options.scale:
        result["scale"] = scale(options.scale, options.distinct)
        print(f"{options.scale} texts, {options.distinct} distinct: {result['scale']['seconds']} s beside encoding")
    if options.write:
        print(f"written to {write_results('clustering', result).name}")


if __name__ == "__main__":
    main()
