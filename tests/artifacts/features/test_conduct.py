"""Techniques that show in what a kernel does: names in the samples say nothing, each has a twin without the point."""

import pytest

from artifacts.candidate import Language
from artifacts.features.techniques import Technique, techniques

HELPERS = r"""
__device__ void park(unsigned b, unsigned p) {
  unsigned d = 0;
  while (!d) asm volatile("mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;" : "=r"(d) : "r"(b), "r"(p));
}
__device__ void bring(unsigned d, const float* s, unsigned b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 64, [%2];"
               :: "r"(d), "l"(s), "r"(b) : "memory");
}
__device__ void give(unsigned b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(b)); }
__device__ float over_lanes(float q) {
  for (int o = 16; o > 0; o >>= 1) q = fmaxf(q, __shfl_xor_sync(~0u, q, o));
  return q;
}
"""


def kernel(body: str, host: str = "", helpers: str = "") -> str:
    head = "__global__ void work(const float* __restrict__ p, float* __restrict__ r, int n, int m) {"
    return f"#include <cuda_runtime.h>\n{HELPERS}{helpers}{head}\n{body}\n}}\n{host}\n"


def shows(technique: Technique, source: str) -> bool:
    return technique in techniques(source, Language.CUDA)


FEED = "for (int i = 0; i < n; ++i) { park(e + i, 1); bring(d + i, p + i, f + i); }"
EMPTY = "for (int i = 0; i < n; ++i) { park(f + i, 0); r[i] = 1.f; give(e + i); }"
BARRIERS = "__shared__ unsigned long long z[4]; unsigned e = 0, f = 8, d = 16; const int w = threadIdx.x >> 5;"


@pytest.mark.parametrize(
    "body",
    [f"if (w == 4) {{ {FEED} return; }} {EMPTY}", f"if (w == 4) {{ {FEED} }} else {{ {EMPTY} }}"],
)
def test_threads_that_only_load_while_the_others_compute_have_roles(body: str) -> None:
    assert shows(Technique.WARP_ROLES, kernel(f"{BARRIERS} {body}"))
    assert not shows(Technique.WARP_ROLES, kernel(f"{BARRIERS} {body}".replace("threadIdx.x >> 5", "m")))


def test_a_thread_that_loads_and_computes_has_no_role_of_its_own() -> None:
    first = "if (threadIdx.x == 0) { for (int i = 0; i < n; ++i) bring(d + i, p + i, f + i); }"
    again = "for (int i = 0; i < n; ++i) { park(f + i, 0); r[i] = 1.f; if (threadIdx.x == 0) bring(d, p + i, f); }"
    source = kernel(f"{BARRIERS} {first} {again}")
    assert not shows(Technique.WARP_ROLES, source)
    assert shows(Technique.PIPELINE, source)


def test_one_bulk_copy_that_is_waited_for_is_no_pipeline() -> None:
    once = "if (threadIdx.x == 0) bring(d, p, f); __syncthreads(); park(f, 0); r[threadIdx.x] = 1.f;"
    assert not shows(Technique.PIPELINE, kernel(f"{BARRIERS} {once}"))


SIZED = "void go(const float* p, float* r) { int c = prop->multiProcessorCount; work<<<c, 128>>>(p, r, 9, 9); }"


@pytest.mark.parametrize(
    "body",
    [
        "for (int q = blockIdx.x; q < n; q += gridDim.x) r[q] = p[q];",
        "const int h = gridDim.x * 4; for (int q = blockIdx.x * 4 + (threadIdx.x >> 5); q < n; q += h) r[q] = p[q];",
        "int q = blockIdx.x; while (true) { r[q] = p[q]; const int b = q + gridDim.x; if (b >= n) break; q = b; }",
        "const int h = gridDim.x; const int k = (n - blockIdx.x + h - 1) / h; for (int q = 0; q < k; ++q) r[q] = 1.f;",
    ],
)
def test_resident_blocks_that_loop_over_tiles_are_persistent(body: str) -> None:
    assert shows(Technique.PERSISTENT, kernel(body, SIZED))
    assert not shows(Technique.PERSISTENT, kernel(body))  # any grid


@pytest.mark.parametrize(
    "body",
    [
        "for (int q = blockIdx.x * 128 + threadIdx.x; q < n; q += gridDim.x * 128) r[q] = p[q];",
        "const int h = gridDim.x * blockDim.x; for (int q = blockIdx.x; q < n; q += h) r[q] = p[q];",
        "float s = 0; for (int q = threadIdx.x; q < gridDim.x; q += blockDim.x) s += p[q]; r[0] = s;",
    ],
)
def test_a_loop_over_single_elements_or_over_the_blocks_is_not_persistent(body: str) -> None:
    assert not shows(Technique.PERSISTENT, kernel(body, SIZED))


def test_a_loop_that_draws_tiles_from_a_counter_is_persistent() -> None:
    loop = "while (true) {{ if (threadIdx.x == 0) q = atomicAdd({at}, 1); __syncthreads(); if (q >= n) break; }}"
    declared = "__shared__ int q; __shared__ int c;"
    assert shows(Technique.PERSISTENT, kernel(declared + loop.format(at="m")))
    assert not shows(Technique.PERSISTENT, kernel(declared + loop.format(at="&c")))


COPY = """__device__ void move(float* d, const float* s) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(__cvta_generic_to_shared(d)), "l"(s)); }"""
ALL = 'asm volatile("cp.async.wait_all;");'


def test_a_copy_that_starts_behind_the_wait_for_the_one_before_is_a_pipeline() -> None:
    body = "__shared__ float4 b[64]; move(b, p); for (int i = 0; i < n; ++i) {{ {0} r[i] = b[0].x; {1} }}"
    assert shows(Technique.PIPELINE, kernel(body.format(ALL, "move(b, p + i);"), helpers=COPY))
    assert not shows(Technique.PIPELINE, kernel(body.format(f"move(b, p + i); {ALL}", ""), helpers=COPY))


def test_results_kept_in_two_halves_are_no_pipeline() -> None:
    loop = "for (int i = 0; i < n; ++i) { float s = 0; s += i; q[b][i] = s; b ^= 1; }"
    body = f"__shared__ float q[2][32]; int b = 0; {loop}"
    assert not shows(Technique.PIPELINE, kernel(body))
    assert shows(Technique.PIPELINE, kernel(body.replace("= s;", "= p[i];")))


AHEAD = "float v = __ldg(p); for (int i = 0; i < n; ++i) {{ {} }}"


@pytest.mark.parametrize(
    ("turn", "ahead"),
    [
        ("r[i] = v; v = __ldg(p + i + 1);", True),
        ("v = __ldg(p + i); r[i] = v;", False),
        ("float v = __ldg(p + i); r[i] = v; v = __ldg(p);", False),
    ],
)
def test_registers_loaded_again_after_their_use_are_fetched_ahead(turn: str, ahead: bool) -> None:
    assert shows(Technique.PREFETCH, kernel(AHEAD.format(turn))) is ahead


def test_tiles_in_groups_of_rows_have_an_order() -> None:
    body = (
        "const int g = blockIdx.x / (8 * m), k = blockIdx.x % (8 * m); const int h = min(8, n - g * 8); r[k % h] = 1.f;"
    )
    assert shows(Technique.L2_ORDER, kernel(body))
    assert not shows(Technique.L2_ORDER, kernel(body.replace("k % h", "k % m")))


ROW = "float v[8]; {} float t = 0; for (int i = 0; i < 8; ++i) t += v[i]; {} for (int i = 0; i < 8; ++i) r[i] = {};"
FILL = "for (int i = 0; i < 8; ++i) v[i] = __ldg(p + i);"


@pytest.mark.parametrize(
    ("fill", "between", "value", "held"),
    [
        (FILL, "t = over_lanes(t);", "v[i] - t", True),
        ("for (int i = 0; i < 8; ++i) { const float u = p[i]; v[i] = u; }", "t = over_lanes(t);", "v[i] - t", True),
        (FILL, "", "v[i] - t", False),
        (FILL, "t = over_lanes(t);", "p[i] - t", False),
        (FILL, f"t = over_lanes(t); {FILL}", "v[i] - t", False),
        (FILL, "t += __shfl_down_sync(~0u, t, 1);", "v[i] - t", False),
    ],
)
def test_a_row_is_held_when_what_was_loaded_is_read_on_both_sides_of_a_reduction(
    fill: str, between: str, value: str, held: bool
) -> None:
    assert shows(Technique.HELD_ROW, kernel(ROW.format(fill, between, value))) is held


MEET = (
    "__shared__ float q[8]; const int w = threadIdx.x >> 5; float s = over_lanes(p[n]); {} __syncthreads(); r[0] = {};"
)


def test_results_of_warps_meet_in_shared_memory() -> None:
    leave = "if (n > 3) q[w] = s;"
    assert shows(Technique.SHARED_REDUCTION, kernel(MEET.format(leave, "fmaxf(q[0], q[1])")))
    assert not shows(Technique.SHARED_REDUCTION, kernel(MEET.format(leave, "q[w] + 1")))
    assert not shows(Technique.SHARED_REDUCTION, kernel(MEET.format("q[w] = __ldg(p + w);", "fmaxf(q[0], q[1])")))


@pytest.mark.parametrize(
    "cut",
    [
        "__half a = __float2half_rn(x); return __float2half_rn(x - __half2float(a));",
        "float a = to_tf32(x); return to_tf32(x - a);",
        "float2 a = __half22float2(c); float y[2] = {a.x, a.y}; return x - y[0];",
    ],
)
def test_what_rounding_leaves_over_is_a_split_operand_on_tensor_cores(cut: str) -> None:
    helpers = f"__device__ float rest(float x, __half2 c) {{ {cut} }}"
    products = 'asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0}, {%1};");'
    assert shows(Technique.SPLIT_PRECISION, kernel(products, helpers=helpers))
    assert not shows(Technique.SPLIT_PRECISION, kernel("r[0] = rest(p[0], c);", helpers=helpers))


@pytest.mark.parametrize(
    ("join", "one"),
    [
        ("float g = fmaxf(a, c); b = b * expf(a - g) + d * expf(c - g); a = g;", True),
        ("float u = c - a; b += d + u * u * n; a = fmaf(u, n, a);", True),
        ("a = fmaxf(a, 0.f) + log1pf(expf(-fabsf(a))) * b;", False),
        ("a = over_lanes(a); b = over_lanes(d * expf(c - a));", False),
    ],
)
def test_pairs_that_are_merged_make_one_pass(join: str, one: bool) -> None:
    helpers = f"__device__ void join(float& a, float& b, float c, float d, float n) {{ {join} }}"
    assert shows(Technique.ONE_PASS, kernel("r[0] = p[0];", helpers=helpers)) is one


def test_the_second_sweep_over_a_row_is_no_joint_moment() -> None:
    sweep = "float s = 0, q = 0; for (int i = 0; i < n; i += 32) { float d = p[i] - m; {} q += d * d; } r[0] = q;"
    assert not shows(Technique.ONE_PASS, kernel(sweep.replace("{}", "")))
    assert shows(Technique.ONE_PASS, kernel(sweep.replace("{}", "s += d;")))
