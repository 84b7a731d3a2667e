"""Which operator a record is about: one identity however a log spells it, and its operator family."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRef:
    """Identity of a task, the same across logs, so that leave-one-task-out holds across sources.

    Attributes:
        task_id: ``suite/level/name`` in lower case, for KernelBench ``kernelbench/1/23_softmax``.
        family: operator family from :data:`FAMILIES`.
    """

    task_id: str
    suite: str
    family: str
    level: int | None = None

    def __post_init__(self) -> None:
        if not self.task_id or self.task_id != self.task_id.strip().lower():
            raise ValueError(f"task_id must be non-empty lower case, got {self.task_id!r}")
        if self.family not in FAMILIES:
            raise ValueError(f"unknown operator family {self.family!r}, one of {', '.join(FAMILIES)}")
        if self.level is not None and not 0 <= self.level < 1000:
            raise ValueError(f"level is {self.level}, not in 0..999")


FAMILIES = (
    "elementwise",
    "reduction",
    "normalization",
    "softmax",
    "scan",
    "pooling",
    "matmul",
    "convolution",
    "attention",
    "loss",
    "sort",
    "moe",
    "recurrent",
    "fusion",
    "model",
    "other",
)
"""Operator families that state, filters and reports use."""


_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NUMBERED = re.compile(r"^(?:(\d+)_)?(?:(\d+)_)?(.*)$")
_COUNT = re.compile(r"^(?:\d+_)+")
_LEVEL_IN_PATH = re.compile(r"level[_ ]?(\d)", re.IGNORECASE)


def kernelbench_task(level: int | str | None, name_or_path: str) -> TaskRef:
    """Return the identity of a KernelBench task.

    ``level1/23_Softmax.py``, ``1_23_Softmax``, ``23_softmax`` and ``23`` at level 1 are one task.
    A name decides before a number, because logs misnumber: ``21_8_HardSigmoid`` is task 28.

    Args:
        level: 1 to 4; None takes it from the path (``level2/...``), then from the name, then 1.
        name_or_path: file name, path or number, as the log has it.
    """
    wanted = int(level) if level is not None else _level_of(name_or_path)
    slug = slugify(re.split(r"[\\/]", name_or_path.strip())[-1].removesuffix(".py"))
    found = _by_number(wanted or 1, slug) if slug.isdecimal() else _by_name(wanted, slug)
    at_level, name = found or (wanted or 1, slug or "unnamed")
    return TaskRef(
        task_id=f"kernelbench/{at_level}/{name}", suite="kernelbench", family=_family_at(at_level, name), level=at_level
    )


def task_at_path(path: str, source: str = "") -> TaskRef:
    """Return the identity of the task that a file or folder name means: KernelBench's if it is one of its names."""
    task = kernelbench_task(None, path)
    slug = task.task_id.rsplit("/", 1)[-1]
    if any(known == slug for known in _tasks().values()) or _level_of(path) or "kernelbench" in path.lower():
        return task
    return named_task("local", re.split(r"[\\/]", path.strip())[-1].removesuffix(".py"), source=source)


def named_task(suite: str, name: str, *, level: int | None = None, family: str = "", source: str = "") -> TaskRef:
    """Return the identity of a task of any other suite: ``suite/level/name`` with ``-`` for no level."""
    place = str(level) if level is not None else "-"
    task_id = f"{slugify(suite) or 'unknown'}/{place}/{slugify(name) or 'unnamed'}"
    return TaskRef(
        task_id=task_id, suite=slugify(suite) or "unknown", family=family or operator_family(name, source), level=level
    )


@functools.lru_cache(maxsize=100_000)
def operator_name(task_id: str) -> str:
    """What the operator of a task is called, whatever suite, level, number and spelling its id has.

    ``kernelbench/1/36_rmsnorm`` and ``cuda/-/rms_norm`` are one operator: what is known of one gives the other away.
    """
    name = task_id.rpartition("/")[2]
    return _squeeze(_COUNT.sub("", name)) or name


def slugify(text: str) -> str:
    """Lower case with every run of other characters than letters and digits as one underscore."""
    return re.sub(r"[\W_]+", "_", text.lower()).strip("_")


def operator_family(name: str, source: str = "") -> str:
    """Return the family from :data:`artifacts.task.FAMILIES` that ``name`` (or else ``source``) names."""
    return _family_of_name(name) or _family_of_source(source)


def _family_of_name(name: str) -> str:
    spaced, joined = (f"_{slugify(text)}_" for text in (_CAMEL.sub("_", name), name))
    return next((family for family, rule in _NAME_RULES if rule.search(spaced) or rule.search(joined)), "")


def _level_of(path: str) -> int | None:
    match = _LEVEL_IN_PATH.search(path)
    return int(match.group(1)) if match else None


def _family_at(level: int, name: str) -> str:
    if level == 2:
        return "fusion"
    family = operator_family(re.sub(r"^\d+_", "", name))
    if level in (3, 4):
        return family if family in ("attention", "recurrent") else "model"
    return family


@functools.cache
def _tasks() -> dict[tuple[int, str], str]:
    """(level, number or bare name) → slug, for the published suite."""
    table: dict[tuple[int, str], str] = {}
    text = resources.files("artifacts").joinpath("kernelbench_tasks.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        level, slug = line.split()[:2]
        number, _, bare = slug.partition("_")
        table[int(level), number] = slug
        table[int(level), _squeeze(bare)] = slug
    return table


def _squeeze(name: str) -> str:
    return name.replace("_", "")


def _by_number(level: int, number: str) -> tuple[int, str] | None:
    slug = _tasks().get((level, number.lstrip("0")))
    return (level, slug) if slug else None


def _by_name(level: int | None, slug: str) -> tuple[int, str] | None:
    """Look the name up without its leading numbers (level, problem) and without a ``_test`` tail."""
    match = _NUMBERED.match(slug.removesuffix("_test"))
    first, second, bare = match.groups() if match else (None, None, slug)
    if level is not None:
        levels: tuple[int, ...] = (level,)
    elif first and second and first in "1234":
        levels = (int(first), 1, 2, 3, 4)
    else:
        levels = (1, 2, 3, 4)
    for at, number in ((at, number) for at in levels for number in (second, first) if number):
        slug_there = _tasks().get((at, number.lstrip("0")), "")
        if _squeeze(slug_there.partition("_")[2]) == _squeeze(bare):
            return at, slug_there  # two names of the suite stand at two numbers each
    names = ((at, _tasks().get((at, _squeeze(bare))) or _cut_off(at, bare)) for at in levels)
    return next(((at, name) for at, name in names if name), None)


def _cut_off(level: int, bare: str) -> str | None:
    """The only task of the level whose number and name begin as ``bare`` does, for cut-off file names."""
    if len(bare) < 20:
        return None
    names = [slug for (at, key), slug in _tasks().items() if at == level and key.startswith(_squeeze(bare))]
    return names[0] if len(names) == 1 else None


def _rules(*rules: tuple[str, str]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((family, re.compile(pattern)) for family, pattern in rules)


_HEAVY = r"_(conv\w{0,12}|linear|gemm|matmul|bmm)_"
_EPILOGUE = r"(?<=_)(relu|gelu|silu|swish|sigmoid|tanh|softmax|\w{0,6}pool\w{0,3}|norm|logsumexp|bias|add)_"

# Read top to bottom, first match wins: the operator a name is about comes before its epilogue.
_NAME_RULES = _rules(
    ("fusion", r"_fused?_|_fusion_"),
    ("elementwise", r"matrix_scalar"),
    ("fusion", rf"{_HEAVY}.*{_EPILOGUE}|{_EPILOGUE}.*{_HEAVY}"),
    ("fusion", r"_ffw_|_mlp_|res(net|idual)_?block"),
    ("moe", r"_moe_|mixture_of_experts"),
    ("attention", r"attention|_attn_|_mha_|_gqa_|_mla_|_sdpa_|dsa_(?!topk)|_dsa_sparse"),
    ("sort", r"_top_?k_|_sort_|argsort|_topk_indexer|_median_|_unique_"),
    ("recurrent", r"_recurren(ce|t)_|_(vanilla_?)?rnn|_lstm|_gru_|_gru|gdn|_ssm_|mamba|gated_delta|_retention_"),
    ("loss", r"loss|_kl_?div|cross_entropy|_mse_|_nll_"),
    ("softmax", r"soft_?max"),
    ("scan", r"cumsum|cumprod|_cum_|_scan_|prefix_sum|cummax|cummin"),
    ("pooling", r"pool"),
    ("convolution", r"conv|depthwise|pointwise_2d"),
    ("normalization", r"norm_|_norm|normaliz|rmsnorm|layernorm|batchnorm|groupnorm"),
    (
        "matmul",
        r"matmul|matrix_(mult|vector|scalar)|matrix_power|_gemm|_bmm_|_mm_|_mv_|_dot_|tensordot|_linear_|gemv|einsum",
    ),
    (
        "reduction",
        r"reduction|reduce|_sum_|_mean_|_max_|_min_|argmax|argmin|_std_|_var_|_prod_|logsumexp|_norm_|_cosine_",
    ),
    (
        "elementwise",
        r"relu|sigmoid|_tanh|gelu|selu|_elu|swish|silu|softplus|softsign|mish|hardtanh|hardswish|_abs_|_exp_|_log_?(1p)?_|"
        r"_sqrt_|_cos_|_sin_|_erfc?_|_floor_|reciprocal|logit|digamma|_mul_|_add_|_i0_|activation|expand_where|_clamp_|"
        r"rotary|_rope_|_where_|glu_|autocast|tile_clamp|_copy_|transpose|permute|embedding",
    ),
)

_SOURCE_OPS = re.compile(
    r"\b(?:nn|F|torch|nn\.functional|torch\.nn\.functional)\.([A-Za-z_][A-Za-z0-9_]*)\(|\.(matmul|softmax|sum|mean|cumsum|norm)\("
)


def _family_of_source(source: str) -> str:
    """Family of the operators a reference calls; two heavy ones or more make a fusion."""
    found: list[str] = []
    for match in _SOURCE_OPS.finditer(source[:100_000]):
        word = next(group for group in match.groups() if group)
        family = _family_of_name(word)
        if family and family not in found:
            found.append(family)
    if not found:
        return "other"
    return found[0] if len(found) == 1 else "fusion"
