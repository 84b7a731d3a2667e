"""Flags of candidates reach compilers in one word each, or not at all."""

from __future__ import annotations

import pytest

from optimizer.evaluation.build.flags import checked, host_flags, names_architecture, words


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["-Xptxas", "-v"], ["-Xptxas=-v"]),
        (["-Xptxas -v,-dlcm=ca"], ["-Xptxas=-v,-dlcm=ca"]),
        (["--ptxas-options=-v"], ["-Xptxas=-v"]),
        (["-arch", "sm_90"], ["-arch=sm_90"]),
        (["--gpu-architecture=sm_90"], ["-arch=sm_90"]),
        (["-gencode", "arch=compute_90a,code=sm_90a"], ["-gencode=arch=compute_90a,code=sm_90a"]),
        (["-std", "c++17"], ["-std=c++17"]),
        (["--std=c++17"], ["-std=c++17"]),
        (["-D", "N=4", "-I", "include"], ["-DN=4", "-Iinclude"]),
        (["-O3 --use_fast_math", "-lineinfo"], ["-O3", "--use_fast_math", "-lineinfo"]),
        (["-Xcompiler", "-fopenmp,-march=native"], ["-Xcompiler=-fopenmp,-march=native"]),
        (["--expt-relaxed-constexpr", "-expt-extended-lambda"], ["--expt-relaxed-constexpr", "-expt-extended-lambda"]),
    ],
)
def test_a_flag_and_its_value_become_one_word(given: list[str], expected: list[str]) -> None:
    assert list(checked(given, for_nvcc=True)) == expected


@pytest.mark.parametrize(
    "flags", [['-DA="x y"'], ["-gencode=arch=compute_90,code=[sm_90,compute_90]"], ["-D", "A='1 + 2'"]]
)
def test_checking_again_changes_nothing(flags: list[str]) -> None:
    once = checked(flags, for_nvcc=True)
    assert checked(once, for_nvcc=True) == once
    assert len(words(once)) == 1


@pytest.mark.parametrize("flag", ["-Xptxas", "-Xcompiler", "-arch", "-I", "-std", "-Xptxas="])
def test_a_flag_without_a_value_does_not_take_the_next_one(flag: str) -> None:
    with pytest.raises(ValueError, match="has no value"):
        checked(["-std=c++17", "-arch=sm_90", flag], for_nvcc=True)


@pytest.mark.parametrize(
    "flags",
    [
        ["-fplugin=a.so"],
        ["-Xcompiler=-fplugin=a.so"],
        ["-Xcompiler", "-B/tmp/bin"],
        ["-Xcompiler=-B/tmp/bin"],
        ["-Xcompiler=@more"],
        ["-Wl,@more"],
        ["-Wl,-Map=/tmp/map"],
        ["-Xlinker", "-plugin=a.so"],
        ["-fdump-tree-all=/tmp/dump"],
        ["-Xptxas", "-o,/tmp/out"],
        ["-ccbin", "./own"],
        ["-wrapper", "sh"],
        ["-specs=own"],
        ["-B."],
        ["@more"],
        ["-o", "elsewhere"],
        ["-Wa,--defsym"],
    ],
)
def test_nothing_makes_a_compiler_run_code_or_write_elsewhere(flags: list[str]) -> None:
    with pytest.raises(ValueError, match="is not allowed"):
        checked(flags, for_nvcc=True)


def test_only_what_nvcc_hands_to_the_host_compiler_reaches_it() -> None:
    flags = [
        "-O3",
        "--use_fast_math",
        "-Xcompiler=-fopenmp,-march=native",
        "-gencode=arch=compute_90,code=sm_90",
        "-DN=4",
        "-Xptxas=-v",
        "-lineinfo",
    ]
    assert host_flags(flags) == ["-O3", "-fopenmp", "-march=native", "-DN=4"]


def test_an_architecture_of_the_host_is_none_of_the_device() -> None:
    assert names_architecture(["-gencode=arch=compute_90,code=sm_90"])
    assert not names_architecture(["-Xcompiler=-march=native"])


def test_the_linker_takes_its_flags_from_either_spelling() -> None:
    assert checked(["-Xlinker", "-rpath", "-Wl,--no-as-needed", "-lcudart"]) == (
        "-Wl,-rpath",
        "-Wl,--no-as-needed",
        "-lcudart",
    )
