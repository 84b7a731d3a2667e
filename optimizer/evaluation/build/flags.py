"""Compiler flags of candidates: one word each, and none that lets a compiler do more than compile."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

_VALUED = {
    **dict.fromkeys(("-D", "--define-macro"), "-D"),
    **dict.fromkeys(("-U", "--undefine-macro"), "-U"),
    **dict.fromkeys(("-I", "--include-path"), "-I"),
    **dict.fromkeys(("-L", "--library-path"), "-L"),
    **dict.fromkeys(("-l", "--library"), "-l"),
    **dict.fromkeys(("-std", "--std"), "-std="),
    **dict.fromkeys(("-arch", "--gpu-architecture"), "-arch="),
    **dict.fromkeys(("-code", "--gpu-code"), "-code="),
    **dict.fromkeys(("-gencode", "--generate-code"), "-gencode="),
    **dict.fromkeys(("-Xptxas", "--ptxas-options"), "-Xptxas="),
    **dict.fromkeys(("-Xcompiler", "--compiler-options"), "-Xcompiler="),
    **dict.fromkeys(("-Xlinker", "--linker-options"), "-Xlinker="),
    **dict.fromkeys(("-t", "--threads"), "--threads="),
    **{name: f"{name}=" for name in ("-Xcudafe", "-maxrregcount", "--maxrregcount", "--param")},
    **{name: f"{name}=" for name in ("-diag-suppress", "--diag-suppress", "-default-stream", "--default-stream")},
    **{name: f"{name}=" for name in ("-split-compile", "--split-compile")},
}
"""Flags whose value may be the next word, by what the two are written as in one. A compiler that finds no value there
takes the flag that comes next, such as ``-c``."""
_HARMLESS = re.compile(
    r"-(O|D|U|f|m|W(?!p,|a,|l,)|w\Z|v\Z|g|std=|I|l|L|G\Z|arch=|code=|use_fast_math|maxrregcount=|pthread|rdc"
    r"|extra-device|restrict|res-usage|ftz|prec-|fmad|shared|static-lib|s\Z|diag-|extended-lambda|expt-|default-stream="
    r"|allow-unsupported-compiler|split-compile="
    r"|-(use_fast_math|expt-|maxrregcount=|gpu-|generate-line-info|restrict|extra-device|extended-lambda|fmad|ftz|prec-"
    r"|threads=|split-compile|resource-usage|default-stream=|optimize|disable-warnings|diag-|relocatable|extra|param="
    r"|allow-unsupported-compiler|verbose\Z))"
)
_WRITES = re.compile(r"-f(plugin|dump|opt-info|save-|compare-debug|profile|auto-profile|lto-|module|diagnostics-add)")
"""Of those, what loads code or names files that a compiler reads or writes."""
_LINKER = re.compile(
    r"--?(rpath|(no-)?as-needed|z|O\d|strip-|[sSE]\Z|gc-sections|hash-style|B(symbolic|static|dynamic)|build-id"
    r"|(start|end)-group|(no-)?whole-archive|exclude-libs|no-undefined|soname|export-dynamic|L|l"
    r"|(en|dis)able-new-dtags|allow-multiple-definition|allow-shlib-undefined|(no-)?warn-)"
)
_ASSEMBLER = re.compile(
    r"--?(v|verbose|w|g|lineinfo|O\d|opt-level|dl?cm=|dscm=|(def|force)-(load|store)-cache|warn-|Werror|suppress-"
    r"|allow-expensive-optimizations|maxrregcount|fmad|disable-|sp-bounds-check|return-at-end)"
)
_FRONT_END = re.compile(r"--?(diag_|display_error_number|promote_warnings|no_warnings)")
_PASSED_ON = {"-Xptxas=": _ASSEMBLER, "-Xlinker=": _LINKER, "-Wl,": _LINKER, "-Xcudafe=": _FRONT_END}


def words(flags: Iterable[str]) -> list[str]:
    """Flags as torch hands them to a shell: one string may hold several."""
    return [word for flag in flags for word in shlex.split(flag)]


def checked(flags: Iterable[str], *, for_nvcc: bool = False) -> tuple[str, ...]:
    """One flag a string, with its value, quoted as a shell wants it.

    Raises:
        ValueError: a flag has no value, or might make a compiler run code or write elsewhere: compilers run outside
            the sandbox.
    """
    single = list(_joined(words(flags), "-Xlinker=" if for_nvcc else "-Wl,"))
    for word in single:
        if not _is_harmless(word):
            raise ValueError(f"compiler flag {word!r} is not allowed")
    return tuple(shlex.quote(word) for word in single)


def _joined(parts: Sequence[str], for_linker: str) -> Iterator[str]:
    rest = iter(parts)
    for word in rest:
        name, equals, value = word.partition("=")
        prefix = _VALUED.get(name)
        if prefix is None:
            yield word
            continue
        if not equals:
            value = next(rest, "")
        if not value:
            raise ValueError(f"compiler flag {name!r} has no value")
        yield (for_linker if prefix == "-Xlinker=" else prefix) + value


def _is_harmless(word: str) -> bool:
    for prefix, allowed in _PASSED_ON.items():
        if word.startswith(prefix):
            return all(_is_plain(part) or allowed.match(part) for part in word.removeprefix(prefix).split(","))
    if word.startswith("-Xcompiler="):
        return all(_is_harmless(part) for part in word.removeprefix("-Xcompiler=").split(","))
    return _is_plain(word) or bool(_HARMLESS.match(word) and not _WRITES.match(word))


def _is_plain(word: str) -> bool:
    """A value; a file of further flags is none."""
    return not word.startswith(("-", "@"))


def host_flags(cuda_flags: Sequence[str]) -> list[str]:
    """What nvcc would hand on to the host compiler: optimisation, language, macros, ``-Xcompiler``."""
    kept: list[str] = []
    for word in words(cuda_flags):
        if word.startswith("-Xcompiler="):
            kept += word.removeprefix("-Xcompiler=").split(",")
        elif word.startswith(("-O", "-std=", "-D", "-U", "-I")):
            kept.append(word)
    return kept


def names_architecture(cuda_flags: Sequence[str]) -> bool:
    """Whether nvcc is told what to compile for."""
    return any(word.startswith(("-arch=", "-gencode=")) for word in words(cuda_flags))


def divided(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Flags that a precompiled header must share, and macros and folders, which it need not."""
    every = words(flags)
    other = [word for word in every if word.startswith(("-D", "-U", "-I"))]
    return [word for word in every if word not in other], other
