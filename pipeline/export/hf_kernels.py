"""A run's winners as a package for the Kernel Hub: ``build.toml``, ``torch-ext/`` and a card.

Winners build themselves when they are imported (``load_inline``, Triton), so the package is one without compiled parts
(``torch-noarch``). Its build is a copy, which is written too: ``kernels.get_local_kernel`` loads the folder as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from artifacts.errors import BadInputError
from artifacts.task import slugify
from pipeline.export.winners import Winner, Winners, new_folder

EDITION = 5
"""Of the ``build.toml`` format: the newest that kernels 0.17 reads."""

_NAME = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]")
_INIT = '''"""Kernels that were verified by HTAM, one module a task; each builds itself when it is first asked for."""

from importlib import import_module

TASKS = {tasks}


def __getattr__(name):
    if name in TASKS:
        return import_module(f".{{name}}", __name__)
    raise AttributeError(f"module has no kernel {{name!r}}, only {{', '.join(TASKS)}}")
'''


def write_package(winners: Winners, out: Path, name: str, license_id: str) -> tuple[Path, ...]:
    """Write the package and return its files.

    Args:
        name: of the kernel on the hub; empty takes that of ``out``.
        license_id: SPDX id under which the kernels are given away.

    Raises:
        BadInputError: ``out`` holds something, the name is none that the hub takes, or devices are mixed.
    """
    name = name or slugify(out.resolve().name).replace("_", "-")
    if not _NAME.fullmatch(name):
        raise BadInputError(f"{name!r} is no name for a kernel", "use lower case letters, digits and dashes: --name")
    backends = sorted({winner.backend for winner in winners.kernels})
    if len(backends) > 1:
        raise BadInputError("the run has winners for several kinds of device", "export runs of one device")
    backend, package = backends[0], name.replace("-", "_")
    modules = {f"{winner.name}.py": winner.text for winner in winners.kernels}
    modules["__init__.py"] = _INIT.format(tasks=repr(tuple(winner.name for winner in winners.kernels)))
    files = {
        "build.toml": _build_toml(name, license_id, backend),
        "README.md": _card(winners, name, package, license_id, backend),
        f"build/torch-{backend}/metadata.json": _metadata(name, license_id, backend, modules),
    }
    for folder in (f"torch-ext/{package}", f"build/torch-{backend}"):
        files |= {f"{folder}/{module}": text for module, text in modules.items()}
    new_folder(out)
    for place, text in files.items():
        path = out / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tuple(out / place for place in files)


def _build_toml(name: str, license_id: str, backend: str) -> str:
    values = {"name": name, "version": 1, "edition": EDITION, "license": license_id, "backends": [backend]}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(["[general]", *lines, "", "[torch-noarch]", ""])


def _metadata(name: str, license_id: str, backend: str, modules: dict[str, str]) -> str:
    content = hashlib.sha256(json.dumps(modules, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
    data = {
        "name": name,
        "id": f"_{name.replace('-', '_')}_{backend}_{content[:12]}",
        "version": 1,
        "license": license_id,
        "python-depends": [],
        "backend": {"type": backend},
    }
    return json.dumps(data, indent=2) + "\n"


def _card(winners: Winners, name: str, package: str, license_id: str, backend: str) -> str:
    first = winners.kernels[0].name
    head = ["---", "library_name: kernels", f"license: {license_id}", "tags:", "- kernels", f"- {backend}", "---", ""]
    build = "needs a compiler on the host that loads it" if backend == "cpu" else "needs nvcc or Triton where it runs"
    text = f"""# {name}

Kernels found and verified by HTAM on the device named below. Each is right and fast for the shapes and types of its
task, and was checked for nothing else. A kernel builds itself when it is first imported, so it {build}.

```python
from pathlib import Path

from kernels import get_local_kernel

module = get_local_kernel(Path("FOLDER")).{first}
layer = module.load(*get_init_inputs(), reference=model)  # takes over weights, device and mode
```

Speed is against PyTorch on the same device, the fastest baseline of the precision class first.
"""
    parts = [*head, text, *map(_section, winners.kernels)]
    if winners.left_out:
        parts.append("## Left out\n\n" + "".join(f"- `{task}`: {why}\n" for task, why in winners.left_out.items()))
    return "\n".join(parts)


def _section(winner: Winner) -> str:
    facts = "".join(f"- {fact}\n" for fact in winner.facts)
    return f"## {winner.name}\n\nTask `{winner.task.task_id}`, operator family {winner.task.family}.\n\n{facts}"
