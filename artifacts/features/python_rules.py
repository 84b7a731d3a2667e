"""Features of the Python side: Triton kernels and operations left to torch."""

from __future__ import annotations

import functools
import re
from collections import Counter

from artifacts.features.python_facts import PythonFacts
from artifacts.features.tokens import by_word

TRITON = by_word(
    {
        "triton_kernel": "triton.jit",
        "triton_autotune": "triton.autotune",
        "triton_heuristics": "triton.heuristics",
        "triton_dot": "tl.dot tl.dot_scaled",
        "triton_block_pointer": "tl.make_block_ptr tl.advance",
        "tma": "tl.make_tensor_descriptor tl._experimental_descriptor_load",
        "triton_hints": "tl.multiple_of tl.max_contiguous",
        "triton_reduce": "tl.sum tl.max tl.min tl.reduce tl.argmax",
        "scan": "tl.cumsum tl.associative_scan",
        "unroll": "tl.static_range",
        "exp2": "tl.exp2 tl.math.exp2",
        "fma": "tl.fma",
        "predication": "tl.where",
        "grid_stride_loop": "tl.num_programs",
        "tile_rasterization": "tl.swizzle2d",
        "transposed_layout": "tl.trans tl.permute",
        "wide_index": "tl.int64",
        "half_precision": "tl.float16",
        "bfloat16": "tl.bfloat16",
        "fp8": "tl.float8e4nv tl.float8e5",
        "int8": "tl.int8",
        "double_precision": "tl.float64",
        "inline_asm": "tl.inline_asm_elementwise",
        "activation_in_kernel": "tl.sigmoid",
        "template_constants": "tl.constexpr",
        "software_pipeline": "tl.debug_barrier",
    }
)
"""Dotted name → feature."""

KEYWORDS = by_word(
    {
        "boundary_check": "mask boundary_check",
        "triton_num_warps": "num_warps",
        "triton_num_stages": "num_stages",
        "cache_hints": "eviction_policy cache_modifier",
        "warp_specialization": "warp_specialize",
        "unroll": "loop_unroll_factor",
        "split_k": "SPLIT_K",
        "tile_rasterization": "GROUP_M GROUP_SIZE_M",
        "tf32": "input_precision allow_tf32",
        "in_place": "inplace",
    }
)
"""Keyword argument → feature; the Triton ones count in Triton sources only."""

TORCH_OPS = by_word(
    {
        "torch_matmul": (
            "matmul mm bmm addmm baddbmm linear einsum addbmm Linear mv tensordot _scaled_mm _int_mm Bilinear"
        ),
        "torch_convolution": (
            "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d conv1d conv2d conv3d "
            "conv_transpose1d conv_transpose2d conv_transpose3d convolution cudnn_convolution fold unfold"
        ),
        "torch_normalization": (
            "layer_norm batch_norm group_norm instance_norm rms_norm normalize LayerNorm BatchNorm1d "
            "BatchNorm2d BatchNorm3d GroupNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d RMSNorm"
        ),
        "torch_activation": (
            "relu relu_ gelu silu sigmoid sigmoid_ tanh tanh_ leaky_relu elu selu hardtanh hardswish "
            "hardsigmoid mish softplus softsign ReLU GELU SiLU Sigmoid Tanh LeakyReLU ELU SELU Hardtanh "
            "Hardswish Mish Softplus swish"
        ),
        "torch_softmax": "softmax log_softmax Softmax LogSoftmax logsumexp",
        "torch_reduction": "sum mean amax amin prod var std norm cumsum cumprod argmax argmin all any",
        "torch_pooling": (
            "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d "
            "AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d MaxPool1d MaxPool2d MaxPool3d "
            "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d "
            "adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d "
            "max_pool3d"
        ),
        "torch_attention": "scaled_dot_product_attention MultiheadAttention multi_head_attention_forward",
        "torch_recurrent": "LSTM GRU RNN LSTMCell GRUCell lstm gru",
        "torch_sort": "sort topk argsort unique searchsorted kthvalue",
        "torch_loss": (
            "mse_loss cross_entropy nll_loss smooth_l1_loss kl_div huber_loss hinge_embedding_loss "
            "triplet_margin_loss cosine_similarity MSELoss CrossEntropyLoss KLDivLoss SmoothL1Loss"
        ),
    }
)
"""Function, method or layer of torch → feature, in Python and in C++ alike."""

TORCH: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"^torch\.compile$", "torch_compile"),
        (r"^torch\.(?:jit\.(?:script|trace)|_C)", "torch_script"),
        (r"channels_last", "channels_last"),
        (r"\.(?:add_|mul_|div_|sub_|relu_|clamp_|sigmoid_|tanh_|copy_|addcmul_)$|\bout$", "in_place"),
        (r"autocast$", "autocast"),
        (r"^torch\.(?:no_grad|inference_mode)$", "no_grad"),
        (r"torch\.cuda\.(?:CUDAGraph|graph|make_graphed_callables)$", "cuda_graph"),
        (r"torch\.cuda\.(?:Stream|stream)$", "cuda_streams"),
        (r"torch\.backends\.", "library_flags"),
        (r"torch\.(?:float16|half)$|\.half$", "half_precision"),
        (r"torch\.bfloat16$|\.bfloat16$", "bfloat16"),
        (r"torch\.float8_", "fp8"),
        (r"torch\.int8$", "int8"),
        (r"torch\.(?:float64|double)$|\.double$", "double_precision"),
        (r"\.(?:t|T|mT|transpose|permute)$", "transposed_layout"),
        (r"load_inline$|cpp_extension", "stock_extension"),
        (r"(?i)self\.\w*cache", "output_cache"),
        (r"torch\.fft\.", "winograd_or_fft"),
    )
)
"""Pattern on a dotted name → feature."""

_FOLDED = re.compile(r"\.(?:t|half|bfloat16|contiguous|transpose|permute|reshape|matmul|fuse_conv_bn_eval|fold|data)$")


def triton_features(facts: PythonFacts) -> Counter[str]:
    """Features of the Triton kernels of a source; empty for one without."""
    found: Counter[str] = Counter()
    if not facts.kernels and "triton.jit" not in facts.names:
        return found
    for name, count in facts.names.items():
        feature = TRITON.get(name)
        if feature is not None:
            found[feature] += count
        elif name.startswith("tl.atomic_"):
            found["atomics"] += count
        elif name.startswith(("tl.math.", "tl.extra.", "libdevice.")) and name.endswith(("tanh", "erf", "sigmoid")):
            found["activation_in_kernel"] += count
    for keyword, count in facts.keywords.items():
        feature = KEYWORDS.get(keyword)
        if feature is not None and feature != "in_place":
            found[feature] += count
    found["triton_kernel"] = max(found["triton_kernel"], facts.kernels)
    found["multiple_launches"] = facts.launches if facts.launches > 1 else 0
    return found


def torch_features(facts: PythonFacts) -> Counter[str]:
    """Features of the torch level: operations left, compilation, layouts, precision, host-side tricks."""
    found: Counter[str] = Counter()
    for name, count in facts.names.items():
        head, _, last = name.rpartition(".")
        feature = TORCH_OPS.get(last)
        if feature is not None and head not in ("tl", "math", "np", "triton.language", "self", "tl.math"):
            found[feature] += count
        for extra in _pattern_features(name):
            found[extra] += count
    found["in_place"] += facts.keywords["inplace"]
    found["weight_folding"] += sum(count for name, count in facts.in_init.items() if _FOLDED.search(name))
    return found


@functools.lru_cache(maxsize=100_000)
def _pattern_features(name: str) -> tuple[str, ...]:
    return tuple(feature for pattern, feature in TORCH if pattern.search(name))
