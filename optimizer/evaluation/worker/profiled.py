"""The process under the profiler: one candidate, called thrice, counted the third time."""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optimizer.evaluation.build.cache import BuildCache
from optimizer.evaluation.build.remote import install
from optimizer.evaluation.sandbox.candidate import adopt, import_candidate
from optimizer.evaluation.sandbox.enter import Policy, enter
from optimizer.evaluation.sandbox.main import start_device
from optimizer.evaluation.sandbox.torch_state import set_precision
from optimizer.evaluation.verify.reference import Case, Reference
from optimizer.evaluation.verify.task_module import load_task_module
from optimizer.evaluation.verify.trials import Trial
from optimizer.evaluation.worker.profiler import CachedBuilder

_PR_SET_PDEATHSIG = 1
_SEED = 20
_WARM_UP = 2


def run(spec: dict[str, Any]) -> None:
    """Bring task and candidate up, then call the candidate between the profiler's marks.

    The environment came scrubbed and stays as it is: the profiler reads variables of its own until the end.
    """
    import torch

    start_device()
    scratch = Path(spec["scratch"])
    install(CachedBuilder(BuildCache(Path(spec["cache"])), spec["fingerprint"]))
    task = load_task_module(spec["task"], scratch, spec["dtype"])
    case = Reference(task, "cuda").case(Trial(name="profile", seed=_SEED))
    enter(_policy(spec))
    set_precision(tf32=spec["tf32"])
    model = _construct(spec, scratch, case)
    with torch.no_grad():
        for _ in range(_WARM_UP):
            model(*case.inputs)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        model(*case.inputs)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def _policy(spec: dict[str, Any]) -> Policy:
    return Policy(
        scratch=spec["scratch"],
        readable=(spec["cache"],),
        cpu_s=spec["cpu_s"],
        memory_bytes=None,
        allow_programs=spec["programs"],
    )


def _construct(spec: dict[str, Any], scratch: Path, case: Case) -> Any:
    import torch

    module = import_candidate(spec["candidate"], scratch)
    torch.manual_seed(_SEED)
    with torch.no_grad():
        model = module.ModelNew(*case.arguments).to("cuda", getattr(torch, spec["dtype"]) if spec["dtype"] else None)
        adopt(model, case.parameters, case.buffers)
    return model


def main(arguments: Sequence[str]) -> None:
    """Entry point: the path of a JSON file is the only argument."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    run(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(sys.argv[1:])
