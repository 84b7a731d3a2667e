"""What the pages quote: figures are those of the result files, places in the repository exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]

LLM = "docs/reference/llm.md"
EVALUATION, EXAMPLES = "docs/reference/evaluation.md", "examples/logs/README.md"
MOVES, CLUSTERING = "docs/results/moves.md", "docs/explanation/clustering.md"
BOTH_DIRECTIONS = ("alone/direction", "with_corpus/direction")
MEMORY = "docs/explanation/memory.md"
EXPERIENCE = "docs/decisions/0009-tell-the-devices-own-record.md"
RATIO, BOTH = "{:.2f} [{:.2f}, {:.2f}]", "are {:.2f}× as fast as `eager_fp32` with the memory and {:.2f}× without it"
FIGURES = [
    (LLM, "of {} steps drawn from", "answers/drawn", ("steps",)),
    (LLM, "the edits have {:.0%} of", "answers/drawn", ("share",)),
    (LLM, "median of a step {:.0%}), and", "answers/drawn/share_by_step", ("median",)),
    (LLM, "and {} are longer than the file", "answers/drawn", ("longer_as_edits",)),
    (MEMORY, RATIO, "optimize-h200/winners/ratio", ("ratio", "low", "high")),
    (MEMORY, RATIO, "optimize-h200-compute/winners/ratio", ("ratio", "low", "high")),
    (EXAMPLES, RATIO, "optimize-h200/winners/ratio", ("ratio", "low", "high")),
    (EXAMPLES, RATIO, "optimize-h200-compute/winners/ratio", ("ratio", "low", "high")),
    *(
        (page, RATIO, "optimize-h200-transfer/winners/ratio", ("ratio", "low", "high"))
        for page in (MEMORY, "CHANGELOG.md", EXAMPLES, EXPERIENCE, "docs/decisions/0010-show-a-verified-kernel.md")
    ),
    *(
        (page, RATIO, f"optimize-h200-transfer/paired/{step}/ratio", ("ratio", "low", "high"))
        for page in (EXAMPLES, EXPERIENCE, MEMORY)
        for step in range(4)
    ),
    *(
        (page, RATIO, f"optimize-h200-transfer/groups/{group}/winners/ratio", ("ratio", "low", "high"))
        for page in (EXAMPLES, EXPERIENCE, MEMORY)
        for group in ("arithmetic", "memory")
    ),
    *(
        (page, RATIO, f"optimize-h200-transfer/groups/{group}/paired/{step}/ratio", ("ratio", "low", "high"))
        for page in (EXPERIENCE, MEMORY)
        for group in ("arithmetic", "memory")
        for step in range(4)
    ),
    *(
        (page, RATIO, f"first-calls-h200/pairs/{arms}", ("ratio", "low", "high"))
        for page, pairs in (
            (EXAMPLES, ("htam|feedback", "shuffled|feedback", "htam|shuffled")),
            (EXPERIENCE, ("htam|feedback", "shuffled|feedback", "htam|shuffled")),
            (MEMORY, ("htam|feedback", "shuffled|feedback", "htam|shuffled")),
            ("docs/decisions/0010-show-a-verified-kernel.md", ("htam|feedback", "shuffled|feedback")),
        )
        for arms in pairs
    ),
    (EXAMPLES, BOTH, "optimize-h200-transfer/winners/over_baseline", ("htam/over_all", "feedback/over_all")),
    (EXAMPLES, BOTH, "optimize-h200/winners/over_baseline", ("htam/over_all", "feedback/over_all")),
    (EXAMPLES, BOTH, "optimize-h200-compute/winners/over_baseline", ("htam/over_all", "feedback/over_all")),
    (EVALUATION, "42 verdicts in {:.1f} s", "evaluation-before-after-h200/after", ("seconds",)),
    (EVALUATION, "before in {:.1f} s", "evaluation-before-after-h200/before", ("seconds",)),
    (EVALUATION, "{:.0f} × ({:,.0f} against", "evaluation-h200/summary", ("against_sequential", "ours_per_hour")),
    (EVALUATION, "{:.1f} ×, six candidates on both sides", "evaluation-h200/summary", ("against_parallel",)),
    (EVALUATION, "very first build of a host {:.1f} s", "evaluation-h200/builds", ("first_build_of_a_host_s",)),
    (EVALUATION, "256 MB {:.1f} s", "evaluation-h200/latency/silu of 256 MiB", ("seconds",)),
    (EVALUATION, "{:,.0f} an hour (69 until the limit", "published-speed/ours", ("per_hour",)),
    (EVALUATION, "{:.1f} × (", "published-speed", ("ratio",)),
    (EVALUATION, "({:.1f} an hour: 4 verdicts", "published-speed/kernelbench", ("per_hour",)),
    (EVALUATION, "{} of 250 correct", "published-sizes/outcomes", ("correct",)),
    (EVALUATION, "{:.1f} GiB in the verifier and {:.1f} GiB", "published-sizes/most_gib", ("verifier", "sandbox")),
    (EVALUATION, "{} tasks, six evaluations", "published-sizes/apart", ("tasks",)),
    (EVALUATION, "above 1 % for {} of them, above 10 % for {}", "published-sizes/apart", ("above 1 %", "above 10 %")),
    (EVALUATION, "{:.2f} s, sandbox and CUDA context", "profile-h200", ("fresh_process_median_s",)),
    (EVALUATION, "({} hacks, {} wrong, {} honest", "exploits-h200/as_expected", ("hacks", "wrong", "honest")),
    *(
        (CLUSTERING, f"| {texts} | {{:.2f}}, {{:.2f}} |", f"clustering/ami/{part}", BOTH_DIRECTIONS)
        for texts, part in (("84 held back", "test"), ("62 of another labeller", "other"), ("all 246", "all"))
    ),
    (CLUSTERING, "strategies {:.2f} ({:.2f})", "step_clustering/strategy", ("all", "mean_over_sources")),
    (MOVES, "| all | {:.3f} [{:.3f}, {:.3f}] | {} |", "moves/all", ("value", "t_low", "t_high", "operators")),
    (MOVES, "never saw the operator orders {:.3f}", "moves/siblings", ("state_and_move",)),
    (MOVES, "{:.3f} [{:.3f}, {:.3f}] (resampled", "moves/siblings", ("mean_over_operators", "t_low", "t_high")),
    (MOVES, "orders {:.3f} (p = {:.3f})", "moves/siblings", ("shuffled", "p_shuffled")),
    ("docs/how-to/gpu-hosts.md", "did {:.2f} × the evaluations", "two-gpus-h200", ("ratio",)),
]
"""Page, what it says with places for figures, result file and place in it, names of the figures there."""


def figure(place: str) -> Any:
    file, *keys = place.split("/")
    data: Any = json.loads((ROOT / "benchmarks/results" / f"{file}.json").read_text())
    for key in keys:
        data = data[int(key) if isinstance(data, list) else key]
    return data


def plain(text: str) -> str:
    """Text without line ends and without the blank before a per cent sign."""
    return re.sub(r"\s+", " ", text).replace(" %", "%")


@pytest.mark.parametrize(("page", "said", "place", "names"), FIGURES)
def test_a_page_quotes_the_figures_of_its_result_file(page: str, said: str, place: str, names: tuple[str, ...]) -> None:
    quoted = said.format(*(figure(f"{place}/{name}") for name in names))
    assert plain(quoted) in plain((ROOT / page).read_text()), f"{page} should say: {quoted}"


def anchors(page: Path) -> set[str]:
    """What a link may name in ``page``, as GitHub makes it from the headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_are_wrapped(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    assert [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_name_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text())
    missing = [f"{file}#{name}" for file, name in links if name not in anchors(page.parent / file if file else page)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    rooms = "pipeline|flows|builder|optimizer|artifacts|tests|docs|benchmarks|examples"
    named = re.findall(rf"`((?:{rooms})/[\w./-]+\.(?:py|md|toml|json|jsonl|j2))`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_that_a_page_places_in_a_file_are_there(page: Path) -> None:
    named = re.findall(r"`(\w+)` in\s+`([\w/]+/\w+\.(?:py|toml))`", page.read_text())
    places = [(name, ROOT / file) for name, file in named]
    assert [name for name, file in places if not file.is_file() or name not in file.read_text()] == []
