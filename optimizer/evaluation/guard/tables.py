"""What candidates may use. Anything a table of allowed things does not name is refused."""

from __future__ import annotations

from optimizer.evaluation.guard.languages import LANGUAGES

MODULES = frozenset(
    [
        "__future__",
        "abc",
        "collections",
        "collections.abc",
        "copy",
        "dataclasses",
        "enum",
        "functools",
        "hashlib",
        "itertools",
        "math",
        "numbers",
        "re",
        "string.Template",
        "textwrap",
        "typing",
        "typing_extensions",
        "warnings",
        "logging",
        "torch",
        "torch.nn",
        "torch.nn.functional",
        "torch.nn.parameter",
        "torch.nn.init",
        "torch.autograd",
        "torch.autograd.function",
        "torch.cuda",
        "torch.library",
        "torch.utils",
        "torch.utils.cpp_extension",
        "torch.types",
        "torch.nn.modules.utils",
        "triton",
        "triton.language",
        "triton.language.extra",
        "triton.language.extra.libdevice",
        "triton.language.extra.cuda",
        "triton.language.extra.cuda.libdevice",
        "triton.language.math",
        "triton.language.libdevice",
        "triton.language.extra.cuda.gdc",
        "triton.runtime",
        "triton.runtime.driver",
        "triton.compiler",
        "triton.tools.tensor_descriptor",
        "os",
        "os.path",
        "pathlib",
        "tempfile",
        *(language.MODULE for language in LANGUAGES),
    ]
)
"""Importable modules; os, pathlib and tempfile only for what :data:`FILE_CALLS` allows."""

_NUMPY = """array asarray arange linspace zeros ones full prod sqrt log log2 exp sin cos ceil floor pi e inf newaxis
    float16 float32 float64 int8 int16 int32 int64 uint8 bool_ finfo iinfo"""
SETUP_MODULES = {"time": frozenset({"time", "perf_counter", "monotonic"}), "numpy": frozenset(_NUMPY.split())}
"""Modules that may be used where a candidate is set up, not while it runs: in the module itself and in
constructors. Each with those of its parts that read no files; where a call could keep a clock or do the work out of
the recorder's sight they are refused."""
SETUP_CONSTANTS = frozenset(["numpy.pi", "numpy.e", "numpy.inf", "numpy.newaxis"])
"""What of them may have a name of its own, since it does nothing."""
_HARMLESS = """operator.add operator.mul operator.sub operator.floordiv operator.mod operator.itemgetter
    sys.platform sys.stderr sys.version_info sys.maxsize sys.byteorder platform.machine platform.system
    platform.processor multiprocessing.cpu_count contextlib.nullcontext types.SimpleNamespace inspect.cleandoc
    einops.rearrange einops.repeat
    torch.nn.modules.utils._single torch.nn.modules.utils._pair torch.nn.modules.utils._triple
    torch.nn.modules.utils._quadruple torch.nn.modules.utils._ntuple torch.nn.modules.module.Module
    torch.cuda.amp.custom_fwd torch.cuda.amp.custom_bwd torch.amp.custom_fwd torch.amp.custom_bwd"""
HARMLESS_PARTS = frozenset(_HARMLESS.split())
"""Parts of refused modules that only say or build something; a module with such parts may be imported for them."""
HARMLESS_TORCH = frozenset(
    ["compiler.disable", "compiler.is_compiling", "jit.ignore", "jit.unused", "jit.is_scripting", "jit.is_tracing"]
)
"""Parts of refused branches of torch that compile nothing."""

FILE_CALLS = frozenset(
    [
        "os.path.join",
        "os.path.dirname",
        "os.path.abspath",
        "os.path.basename",
        "os.path.exists",
        "os.path.isfile",
        "os.path.isdir",
        "os.path.realpath",
        "os.path.expanduser",
        "os.makedirs",
        "os.cpu_count",
        "os.environ.get",
        "os.environ.setdefault",
        "tempfile.mkdtemp",
        "tempfile.gettempdir",
        "tempfile.TemporaryDirectory",
        "tempfile.NamedTemporaryFile",
        "pathlib.Path",
        "os.fspath",
        "os.getpid",
    ]
)
"""Dotted uses of file modules that let a candidate write its sources for ``cpp_extension.load``."""

ENVIRONMENT = frozenset(
    ["TORCH_CUDA_ARCH_LIST", "MAX_JOBS", "CC", "CXX", "CUDA_HOME", "CUDA_PATH", "TORCH_EXTENSIONS_DIR", "CUDAHOSTCXX"]
)
"""Variables of the build that a candidate may set or ask for."""

BUILTINS_REFUSED = frozenset(
    [
        "eval",
        "exec",
        "compile",
        "__import__",
        "globals",
        "locals",
        "vars",
        "breakpoint",
        "input",
        "exit",
        "quit",
        "help",
        "memoryview",
        "SystemExit",
        "KeyboardInterrupt",
        "BaseException",
        "BaseExceptionGroup",
        "__builtins__",
        "__loader__",
        "__spec__",
        "copyright",
        "credits",
    ]
)

DUNDERS = frozenset(["__init__", "__name__", "__file__", "__doc__", "__all__", "__version__", "__future__"])
METHODS = frozenset(["__init__", "__repr__", "__post_init__", "__len__", "__hash__", "__eq__"])
"""Special methods a class may define."""
PLAIN_METHODS = METHODS | {"__call__", "__getitem__", "__iter__", "__contains__", "__str__"}
"""The same for a class that inherits nothing; Python and torch call these of modules and tensors behind the scenes."""

_MODULE_API = """_apply _call_impl _compiled_autograd_key _get_backward_hooks _get_backward_pre_hooks _get_name
    _load_from_state_dict _named_members _replicate_for_data_parallel _save_to_state_dict _sequence_nr _slow_forward
    _wrapped_call_impl add_module apply backward bfloat16 buffers children compile cpu cuda double eval extra_repr float
    forward get_buffer get_extra_state get_parameter get_submodule half ipu jvp load_state_dict modules mtia name
    named_buffers named_children named_modules named_parameters parameters register_buffer register_module
    register_parameter requires_grad_ set_extra_state setup_context share_memory state_dict to to_empty train type vjp
    vmap xpu zero_grad get_inputs get_init_inputs"""
CALLED_BY_TORCH = frozenset(_MODULE_API.split())
"""Methods of modules and autograd functions, which others than the candidate call too."""

TORCH_REFUSED = {
    "precision": "autocast amp cuda.amp set_float32_matmul_precision",
    "state": """autograd.set_detect_anomaly autograd.anomaly_mode
        set_num_threads set_num_interop_threads set_default_dtype set_default_device set_default_tensor_type
        set_flush_denormal set_rng_state use_deterministic_algorithms set_printoptions set_warn_always
        cuda.set_device cuda.set_rng_state cuda.set_per_process_memory_fraction cuda.set_sync_debug_mode
        cuda.memory cuda.empty_cache cuda.caching_allocator_alloc cuda.caching_allocator_delete
        cuda.reset_peak_memory_stats
        cuda.mem_get_info random""",
    "stream": """cuda.Stream cuda.stream cuda.set_stream cuda.ExternalStream cuda.StreamContext Stream
        cuda.default_stream""",
    "graph": "cuda.CUDAGraph cuda.graph cuda.graphs cuda.make_graphed_callables cuda.graph_pool_handle",
    "timer": "cuda.Event Event cuda.nvtx profiler utils.benchmark autograd.profiler cuda.profiler cuda.cudart",
    "escape": """load save hub package multiprocessing distributed futures overrides from_file UntypedStorage
        utils.data utils.dlpack from_dlpack to_dlpack serialization classes ops.load_library nn.modules.module
        backends.cuda.cufft_plan_cache
        utils.backend_registration utils.collect_env utils.hooks fx""",
    "compiler": "compile jit compiler export onnx",
}
"""Attributes of torch by the rule that refuses them; a longer chain below one is refused too."""

TORCH_MOVES = frozenset(
    [
        "empty",
        "empty_like",
        "empty_strided",
        "zeros",
        "zeros_like",
        "ones",
        "ones_like",
        "full",
        "full_like",
        "tensor",
        "as_tensor",
        "as_strided",
        "reshape",
        "flatten",
        "permute",
        "transpose",
        "t",
        "squeeze",
        "unsqueeze",
        "movedim",
        "swapaxes",
        "broadcast_to",
        "expand",
        "cat",
        "stack",
        "chunk",
        "split",
        "unbind",
        "narrow",
        "select",
        "is_tensor",
        "is_floating_point",
        "numel",
        "no_grad",
        "inference_mode",
        "enable_grad",
        "device",
        "dtype",
        "Size",
        "Tensor",
        "Generator",
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "bool",
        "half",
        "float",
        "double",
        "int",
        "long",
        "finfo",
        "iinfo",
        "get_default_dtype",
        "is_grad_enabled",
        "get_device",
        "manual_seed",
        "rand",
        "randn",
        "randint",
        "arange",
        "linspace",
        "broadcast_shapes",
        "broadcast_tensors",
        "contiguous_format",
        "channels_last",
        "promote_types",
        "result_type",
        "can_cast",
        "memory_format",
        "clone",
        "detach",
        "ops",
        "nn",
        "cuda",
        "autograd",
        "utils",
        "library",
        "jit_ignore",
        "is_complex",
        "float8_e4m3fn",
        "float8_e5m2",
        "strided",
        "pad",
        "preserve_format",
        "scalar_tensor",
        "from_numpy",
        "atleast_1d",
        "atleast_2d",
        "ravel",
        "view_as_real",
        "_assert",
        "is_contiguous",
    ]
)
"""Functions of torch and torch.nn.functional that compute nothing a task asks for."""

_COMPUTING = """softmax log_softmax relu relu_ leaky_relu gelu silu sigmoid tanh matmul mm bmm addmm baddbmm mv dot
    einsum conv1d conv2d conv3d linear layer_norm batch_norm group_norm rms_norm sum mean prod max min amax amin argmax
    argmin var std norm exp log sqrt rsqrt cumsum cumprod sort topk clamp clamp_min clamp_max abs pow logsumexp bilinear
    cdist scaled_dot_product_attention max_pool1d max_pool2d avg_pool1d avg_pool2d cross_entropy"""
COMPUTING_METHODS = frozenset(_COMPUTING.split())
"""Functions and methods of tensors that are all or most of what a task asks for."""
_HOLDERS = "Parameter ParameterList ParameterDict Module ModuleList ModuleDict Sequential Identity Dropout Buffer"
PLAIN_MODULES = frozenset(_HOLDERS.split())
"""Classes of torch.nn that hold things and compute nothing."""

REFUSED_CALLS = {
    "process": "system popen fork vfork clone execl execlp execle execv execvp execve posix_spawn posix_spawnp "
    "_exit _Exit quick_exit kill raise signal sigaction setjmp longjmp atexit at_quick_exit "
    "daemon setsid setpgid ptrace prctl syscall",
    "file": "fopen freopen fdopen open openat creat read write pread pwrite readv writev dup dup2 pipe close mmap "
    "munmap mprotect shm_open unlink remove rename rmdir mkdir opendir readdir ioctl fcntl sendfile readlink",
    "environment": "getenv setenv putenv unsetenv secure_getenv getpid getppid gettid getuid",
    "network": "socket connect bind listen accept sendto recvfrom getaddrinfo gethostbyname",
    "timer": "sleep usleep nanosleep clock_gettime gettimeofday clock time alarm setitimer",
    "loading": "dlopen dlsym dlmopen dladdr dl_iterate_phdr",
    "memory": "process_vm_readv process_vm_writev malloc_usable_size sbrk brk mallopt malloc_trim",
    "thread": "pthread_create pthread_kill thrd_create",
}
"""C functions by the rule that refuses them, in the text and in what a library imports."""

INCLUDE_FOLDERS = (
    "torch/", "ATen/", "c10/", "cub/", "cuda/", "thrust/", "cutlass/", "cute/", "cooperative_groups",
    "pybind11/", "nv/",
)  # fmt: skip
INCLUDES_REFUSED = ("ATen/native", "ATen/cuda/CUDABlas", "ATen/cudnn", "ATen/cuda/CUDAGraph", "pybind11/embed",
    "pybind11/eval", "torch/script", "torch/csrc/autograd/python", "torch/csrc/jit", "c10/cuda/CUDACachingAllocator",
    "ATen/cuda/CUDAEvent", "torch/cuda.h", "torch/serialize")  # fmt: skip
INCLUDES_IDLE = {
    "chrono": r"\bchrono\b|_clock\b|\bduration_cast\b",
    "future": r"\b(?:shared_future|promise|packaged_task)\b",
    "condition_variable": r"\bcondition_variable",
    "fstream": r"\b\w*f(?:stream|ilebuf)\b",
    "ctime": r"\b(?:time|clock|timespec\w*|\w*time_r?|tm)\b",
    "time.h": r"\b(?:time|clock|timespec\w*|\w*time_r?|tm)\b",
    "cublas_v2.h": r"blas",
    "cublas.h": r"blas",
    "cublasLt.h": r"blas",
    "cudnn.h": r"cudnn",
    "cusparse.h": r"cusparse",
    "cusolverDn.h": r"cusolver",
    "curand.h": r"\bcurand(?!_(?:init|normal|uniform|log|poisson)|State|_kernel)\w*",
    "torch/script.h": r"\b(?:jit|script)\b",
    "torch/cuda.h": r"\btorch\s*::\s*cuda\b",
    "c10/cuda/CUDACachingAllocator.h": r"CachingAllocator",
    "ATen/cuda/CUDAEvent.h": r"Event",
    "ATen/cuda/CUDABlas.h": r"blas",
    "ATen/native": r"\bnative\b",
    "ATen/cudnn": r"cudnn",
}
"""Headers, or folders of them, that may be included, as out of habit, where nothing of them is used."""
INCLUDES = frozenset(
    [
        "algorithm",
        "any",
        "array",
        "atomic",
        "bit",
        "bitset",
        "cassert",
        "assert.h",
        "cctype",
        "cerrno",
        "cfloat",
        "charconv",
        "cinttypes",
        "compare",
        "float.h",
        "cstdarg",
        "stdarg.h",
        "forward_list",
        "iosfwd",
        "ios",
        "istream",
        "memory_resource",
        "queue",
        "shared_mutex",
        "stack",
        "typeindex",
        "valarray",
        "cpuid.h",
        "malloc.h",
        "mm_malloc.h",
        "stdbool.h",
        "stdalign.h",
        "nmmintrin.h",
        "pmmintrin.h",
        "smmintrin.h",
        "tmmintrin.h",
        "climits",
        "limits.h",
        "cmath",
        "math.h",
        "complex",
        "cstddef",
        "stddef.h",
        "cstdint",
        "stdint.h",
        "cstdio",
        "stdio.h",
        "cstdlib",
        "stdlib.h",
        "cstring",
        "string.h",
        "deque",
        "exception",
        "functional",
        "initializer_list",
        "iostream",
        "ostream",
        "iomanip",
        "iterator",
        "limits",
        "list",
        "map",
        "memory",
        "mutex",
        "new",
        "numeric",
        "numbers",
        "optional",
        "random",
        "ratio",
        "set",
        "span",
        "sstream",
        "stdexcept",
        "string",
        "string_view",
        "thread",
        "tuple",
        "type_traits",
        "typeinfo",
        "unordered_map",
        "unordered_set",
        "utility",
        "variant",
        "vector",
        "version",
        "concepts",
        "ranges",
        "immintrin.h",
        "x86intrin.h",
        "xmmintrin.h",
        "emmintrin.h",
        "avxintrin.h",
        "avx2intrin.h",
        "arm_neon.h",
        "omp.h",
        "cuda.h",
        "cuda_runtime.h",
        "cuda_runtime_api.h",
        "cuda_fp16.h",
        "cuda_bf16.h",
        "cuda_fp8.h",
        "cuda_pipeline.h",
        "cuda_pipeline_primitives.h",
        "cuda_awbarrier.h",
        "device_launch_parameters.h",
        "device_functions.h",
        "math_constants.h",
        "vector_types.h",
        "vector_functions.h",
        "cuda_device_runtime_api.h",
        "mma.h",
        "sm_20_intrinsics.h",
        "helper_math.h",
        "cudaTypedefs.h",
        "device_atomic_functions.h",
        "builtin_types.h",
        "driver_types.h",
        "math_functions.h",
        "crt/host_defines.h",
        "host_defines.h",
        "curand_kernel.h",
    ]
)
