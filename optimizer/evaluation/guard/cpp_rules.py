"""Rules for C++ and CUDA text, applied to what is really compiled."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from artifacts.measurement import GuardFinding
from optimizer.evaluation.guard.cpp_lifetime import kept_tensors, operators_in_threads, threads
from optimizer.evaluation.guard.cpp_text import CppText, line_of, split_cpp
from optimizer.evaluation.guard.tables import INCLUDE_FOLDERS, INCLUDES, INCLUDES_IDLE, INCLUDES_REFUSED, REFUSED_CALLS

_FREE = r"(?<![\w.>:])(?:std::|::)?"
"""Before a name: not a member, not part of a longer name or of another namespace."""

_WORDS = {
    "thread": r"std\s*::\s*(?:packaged_task|promise|shared_future|condition_variable)\w*|pthread_\w+",
    "file": r"std\s*::\s*(?:basic_)?[io]?f(?:ile)?stream|std\s*::\s*filesystem|std\s*::\s*freopen",
    "python": r"\bPy(?:[A-Z]\w*)?_\w+|\bpy(?:bind11)?\s*::\s*(?:exec|eval|eval_file|globals|module_?\s*::\s*import|"
    r"module_::import|getattr)|\bimport\s*\(|\.\s*attr\s*\((?:[^()]|\([^()]*\))*\)(?!\s*=[^=])",
    "stream": r"\bcudaStream(?:Create|Destroy|BeginCapture|EndCapture|AddCallback|WaitEvent|SetAttribute|"
    r"UpdateCaptureDependencies)\w*|\bcuStream(?!_t\b)\w+|\bcudaLaunchHostFunc\w*|getStreamFromPool|CUDAStreamGuard|"
    r"CUDAMultiStreamGuard|setCurrentCUDAStream|getDefaultCUDAStream|getStreamFromExternal|cudaStreamPerThread|"
    r"CU_STREAM_PER_THREAD|cudaStreamNonBlocking|\(\s*(?:cudaStream_t|CUstream)\s*\)\s*(?:0[xX])?0*[1-9]|"
    r"\b(?:reinterpret|static|bit)_cast\s*<\s*(?:cudaStream_t|CUstream)\s*>",
    "graph": r"\bcudaGraph\w*|\bcuGraph\w*|CUDAGraph",
    "timer": r"\bcudaEvent\w*|\bcuEvent\w*|CUDAEvent|std\s*::\s*(?:chrono|this_thread)|\b\w*rdtscp?\b|"
    r"\bomp_get_w(?:time|tick)\b|\b\w*clock64\b|\bc10\s*::\s*get(?:Approximate)?Time\w*",
    "state": r"\bcudaDevice(?:SetLimit|Reset|SetCacheConfig|SetSharedMemConfig|SetMemPool)\w*|\bcudaSetDeviceFlags|"
    r"\bcudaCtx\w*|\bcuCtx\w*|ResetPersistingL2|globalContext|setAllowTF32\w*|setFloat32MatmulPrecision|"
    r"set_num_threads|setBenchmark\w*|setDeterministic\w*|manual_seed|_MM_SET_FLUSH_ZERO_MODE|"
    r"\bSet(?:CPU)?Allocator\b|REGISTER_\w*ALLOCATOR|PluggableAllocator|_MM_SET_DENORMALS_ZERO_MODE|_mm_setcsr|fesetround|CUDACachingAllocator|cudaMemPool\w*|cudaIpc\w*|cuIpc\w*",
    "library": r"\bcublas\w*|\bcudnn\w*|\bcusparse\w*|\bcusolver\w*|\bmkl_\w+|\bcblas_\w+|\bdnnl\w*",
    "dispatcher": r"\bat\s*::\s*(?:native|cpu|meta|_ops|redispatch|compositeexplicit\w*|compositeimplicit\w*)\b|"
    r"AutoDispatchBelow\w*|ExcludeDispatchKey\w*|IncludeDispatchKey\w*|PythonDispatcher\w*|"
    r"\bc10\s*::\s*Dispatcher\b|\bfindSchema\w*|\bredispatch\w*|\bDispatchKeySet\b|\bcallBoxed\w*|"
    r"ForceDispatchKey\w*|TorchDispatchMode\w*|PythonTLS\w*|impl\s*::\s*tls_|ThreadLocalState\w*",
    "constructor": r"\b(?:constructor|destructor|ifunc|weakref)\b\s*(?:\(|\))|\binit_array\b|\bLD_PRELOAD\b",
    "preprocessor": r"#\s*(?:embed|include_next|import|line)\b|\b__has_embed\b",
}
_INCLUDE_LINE = re.compile(r"#[ \t]*include[^\n]*")
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define\b[^\n]*", re.MULTILINE)
_PASTING = re.compile(r"^[ \t]*#[ \t]*define\b[^\n]*##(?!\s*__VA_ARGS__)[^\n]*", re.MULTILINE)
_MOST_PIECES = 200
"""Of which every pair is looked at."""
_NOTED = frozenset({"pasting"})
"""Rules that only inform."""
_AT_CUDA = re.compile(
    r"\bat\s*::\s*cuda\s*::\s*(?!getCurrentCUDAStream|getCurrentDeviceProperties|getDeviceProperties|ATenCeilDiv|"
    r"CUDAGuard|OptionalCUDAGuard|warp_size|current_device|is_available|stream_synchronize|philox\b|detail\b|CUDAStream\b)(\w+)"
)
_ASSEMBLY = re.compile(r"syscall|sysenter|\bint\s+\$?0x80|\.incbin|\bsvc\b|rdtsc|globaltimer|%clock", re.IGNORECASE)
_ENTRY_POINT = re.compile(r"\b(?:cudaGetDriverEntryPoint|cuGetProcAddress)\w*\s*\(\s*")
_HARMLESS_ENTRY = re.compile(r'"cuTensorMap\w*"')
"""What a kernel needs of the driver and no header's library gives: descriptors of tensors."""
_FORBIDDEN = [
    (rule, re.compile(rf"{_FREE}\b({'|'.join(names.split())})\s*\(")) for rule, names in REFUSED_CALLS.items()
]
_FORBIDDEN += [(rule, re.compile(pattern)) for rule, pattern in _WORDS.items()]


def check_cpp(source: str, own_headers: frozenset[str] = frozenset()) -> tuple[GuardFinding, ...]:
    """Fatal findings in one C++ or CUDA file.

    Args:
        source: the text as the compiler gets it.
        own_headers: names that may be included by quotes because the candidate brings them.
    """
    text = split_cpp(source)
    return tuple(
        GuardFinding(rule=f"cpp_{rule}", message=message, line=line_of(source, offset), fatal=rule not in _NOTED)
        for rule, message, offset in (
            *_includes(text, own_headers),
            *_words(text),
            *kept_tensors(text.code),
            *_literals(text),
            *_entry_points(text),
            *_macros(text),
            *operators_in_threads(text.code),
            *threads(text.code),
        )
    )


def _includes(text: CppText, own: frozenset[str]) -> Iterator[tuple[str, str, int]]:
    used = _without_includes(text.code)
    for offset, spelled in text.includes:
        name = spelled[1:-1].strip()
        known = name in INCLUDES or name.startswith(INCLUDE_FOLDERS) or name in own
        allowed = (known and not name.startswith(INCLUDES_REFUSED)) or _is_idle(name, used)
        if not allowed or ".." in name:
            yield "include", f"header {name} is not allowed", offset


def _without_includes(code: str) -> str:
    return _INCLUDE_LINE.sub(lambda match: " " * len(match.group()), code)


def _is_idle(name: str, used: str) -> bool:
    patterns = [pattern for header, pattern in INCLUDES_IDLE.items() if name == header or name.startswith(header + "/")]
    return bool(patterns) and not any(re.search(pattern, used) for pattern in patterns)


def _words(text: CppText) -> Iterator[tuple[str, str, int]]:
    code = _without_includes(text.code)
    for rule, pattern in _FORBIDDEN:
        for match in pattern.finditer(code):
            if rule in REFUSED_CALLS and match.lastindex and _defines(code, match[match.lastindex]):
                continue
            yield rule, f"{match.group().strip(' (')} is not allowed", match.start()
    for match in _AT_CUDA.finditer(code):
        yield "dispatcher", f"{match.group()} is not allowed", match.start()


def _defines(code: str, name: str) -> bool:
    """Whether the source has a function or lambda of its own with that name."""
    function = rf"[\w>&*]\s+\*?{name}\s*\([^;{{}}]*\)\s*(?:const\s*)?\{{"
    return bool(re.search(rf"{function}|\b{name}\s*=\s*\[", code))


def _literals(text: CppText) -> Iterator[tuple[str, str, int]]:
    for offset, literal in text.literals:
        if _ASSEMBLY.search(literal):
            yield "assembly", "system calls and data files from assembly are not allowed", offset
        if re.match(r'(?:R"[^(]*\(|")(?:/(?:proc|dev|etc|home|root|tmp|sys|var|usr|opt)\b|\.\./)', literal):
            yield "file", f"path {literal[:60]} is not allowed", offset


def _entry_points(text: CppText) -> Iterator[tuple[str, str, int]]:
    """Functions of the driver asked for by a name in quotes, as the guard sees no other."""
    named = dict(text.literals)
    for match in _ENTRY_POINT.finditer(text.code):
        name = named.get(match.end(), "another name")
        if not _HARMLESS_ENTRY.match(name):
            yield "loading", f"{match.group().strip(' (')} of {name} is not allowed", match.start()


def _macros(text: CppText) -> Iterator[tuple[str, str, int]]:
    """Token pasting can spell any name: refused when its pieces make a forbidden one, else noted."""
    pasting = list(_PASTING.finditer(text.code))
    if not pasting:
        return
    pieces = _pieces(text.code)
    for name in ("".join(pair) for pair in itertools.permutations(pieces, 2)):
        for rule, pattern in _FORBIDDEN:
            if pattern.search(name + "("):
                yield rule, f"{name}, put together by token pasting, is not allowed", pasting[0].start()
                return
    for match in pasting:
        yield "pasting", "token pasting (##) hides names from the guard", match.start()


def _pieces(code: str) -> list[str]:
    """Words of macros' bodies and of what they are called with, themselves harmless."""
    functions = "|".join(set(re.findall(r"#[ \t]*define[ \t]+(\w+)\(", code))) or "$^"
    texts = [match.group() for match in _DEFINE.finditer(code)]
    texts += [match[1] for match in re.finditer(rf"\b(?:{functions})\s*\(([^;{{}}]*)", code)]
    words = dict.fromkeys(word for text in texts for word in re.findall(r"\w+", text))
    return list(words)[:_MOST_PIECES]
