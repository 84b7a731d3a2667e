"""``htam doctor``: what this host can do for HTAM and what is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import click

from artifacts.errors import HtamError
from pipeline.project import FILE, project_file, project_settings
from pipeline.voice import counted

GOOD, MISSING, BROKEN = "good", "missing", "broken"
"""``missing`` is what only some commands need; ``broken`` makes the doctor exit with 1."""
MARKS = {GOOD: ("ok", "green"), MISSING: ("--", "yellow"), BROKEN: ("!!", "red")}


class Finding(NamedTuple):
    """What was looked at, how it is, and what to do about it."""

    subject: str
    status: str
    text: str
    fix: str = ""


@click.command(name="doctor")
@click.option("--store", default="memories", show_default=True, help="Store whose access is checked.")
@click.option("--online", is_flag=True, help="Also ask whether the LLM endpoint answers.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(store: str, online: bool, as_json: bool) -> None:
    """Say what this host can do and what is missing; exit code 1 when something is broken.

    \b
    Examples:
      htam doctor
      htam doctor --store memories --online --json
    """
    findings = []
    for finding in examine(store, online=online):
        findings.append(finding)
        if not as_json:
            mark, colour = MARKS[finding.status]
            fix = f" ({finding.fix})" if finding.fix else ""
            click.echo(f"{click.style(mark, fg=colour)}  {finding.subject:<14} {finding.text}{fix}")
    if as_json:
        click.echo(json.dumps([finding._asdict() for finding in findings], indent=1))
    sys.exit(any(finding.status == BROKEN for finding in findings))


def examine(url: str, *, online: bool = False) -> Iterator[Finding]:
    """Yield findings as they are made; ``online`` also asks the LLM endpoint for its models."""
    yield python()
    yield packages()
    yield project()
    yield compiler()
    yield gpu()
    yield torch_build()
    yield sandbox()
    yield encoder()
    yield endpoint(online=online)
    yield prefect()
    yield prefect_home()
    yield store(url)


ROOMS = ("pipeline", "flows", "builder", "optimizer", "artifacts")


def python() -> Finding:
    """Interpreter and number of cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding("python", GOOD, f"{platform.python_version()} in {sys.prefix}, {counted(cores or 1, 'core')}")


def packages() -> Finding:
    """Whether another package shadows one of our root names, which are generic words."""
    home = Path(__file__).parents[2]
    for room in ROOMS:
        spec = importlib.util.find_spec(room)
        origin = Path(spec.origin) if spec and spec.origin else None
        if origin is None or origin.parents[1] != home:
            fix = "use a virtual environment of its own, or uninstall the other package"
            return Finding("packages", BROKEN, f"{room} is imported from {origin}, not from {home}", fix)
    return Finding("packages", GOOD, f"htam-kernels {version('htam-kernels')} in {home}, no root name is shadowed")


def project() -> Finding:
    """The settings file in force, with what it says."""
    path = project_file()
    if path is None:
        return Finding("project", GOOD, f"no {FILE} here or above: options have their own defaults")
    found = project_settings(path)
    return Finding(
        "project", GOOD, f"{path}: {', '.join(f'{key} = {value}' for key, value in found.items()) or 'empty'}"
    )


def compiler() -> Finding:
    """C++ compiler of the CPU backend."""
    name = os.environ.get("CXX", "c++")
    path = shutil.which(name) or shutil.which("g++") or shutil.which("clang++")
    if path is None:
        return Finding("compiler", MISSING, f"no C++ compiler ({name})", "install g++ for the CPU backend")
    first = _output([path, "--version"]).splitlines()
    return Finding("compiler", GOOD, f"{path}: {first[0] if first else 'unknown version'}")


def gpu() -> Finding:
    """NVIDIA devices as the driver lists them, with memory in use and uncorrected errors."""
    query = "name,memory.used,memory.total,ecc.errors.uncorrected.volatile.total"
    rows = _output(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]).splitlines()
    if not rows:
        return Finding(
            "gpu", MISSING, "no NVIDIA GPU answers", "only --backend cuda needs one; jobs can go to a GPU host as files"
        )
    errors = [row for row in rows if row.split(",")[-1].strip() not in ("0", "[N/A]", "N/A")]
    if errors:
        return Finding(
            "gpu", BROKEN, f"uncorrected memory errors: {errors[0]}", "reset or replace the device before measuring"
        )
    return Finding("gpu", GOOD, "; ".join(rows))


def torch_build() -> Finding:
    """Whether the installed torch fits the devices."""
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return Finding("torch", BROKEN, "torch is not installed", "run make test or make demo once, they install it")
    has_gpu = bool(_output(["nvidia-smi", "-L"]).strip())
    if has_gpu and "+cpu" in installed:
        return Finding(
            "torch",
            MISSING,
            f"{installed} cannot use the GPU of this host",
            "uv pip install --torch-backend auto torch",
        )
    if not has_gpu and "+cu" in installed:
        return Finding("torch", GOOD, f"{installed}: a CUDA build on a host without GPU, gigabytes larger than needed")
    return Finding("torch", GOOD, installed)


def sandbox() -> Finding:
    """What a process inside the sandbox of candidates is kept from, tried on this host."""
    from optimizer.evaluation.sandbox.probe import features

    try:
        found = features()
    except (subprocess.SubprocessError, OSError, ValueError) as problem:
        fix = "run evaluation on another host, or in a container of its own"
        return Finding("sandbox", BROKEN, f"it could not be entered ({type(problem).__name__})", fix)
    layers = ", ".join(found.layers) or "none"
    open_doors = [name.replace("_", " ") for name, refused in found.barred.items() if not refused]
    if open_doors:
        fix = "run evaluation in a container of its own, see docs/how-to/team-service.md#security"
        return Finding("sandbox", MISSING, f"layers {layers}; candidates can still: {', '.join(open_doors)}", fix)
    return Finding("sandbox", GOOD, f"layers {layers}; all {len(found.barred)} attempts to get out were refused")


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


KEY = "OPENAI_API_KEY"
BASE = "OPENAI_BASE_URL"


def encoder() -> Finding:
    """Whether the default sentence encoder is here, with the pinned weights."""
    from builder.embed.encoders import SentenceTransformerEmbedder

    embedder = SentenceTransformerEmbedder()
    try:
        digest = embedder.sha256
    except HtamError as problem:
        return Finding("encoder", MISSING, problem.what, problem.fix)
    return Finding("encoder", GOOD, f"{embedder.name}, weights {digest[:16]}")


def endpoint(*, online: bool) -> Finding:
    """Whether a key is set (it is never shown) and, with ``online``, whether the endpoint's host answers."""
    base = os.environ.get(BASE, "")
    key = "a key is set" if os.environ.get(KEY) else "no key is set"
    where = f"{urlsplit(base).hostname}" if base else "the default endpoint"
    if not os.environ.get(KEY) and not base:
        return Finding(
            "llm", MISSING, f"{key} in {KEY}", "needed for --llm openai:MODEL only; replay:FILE and files work without"
        )
    if online and not _answers(base):
        return Finding("llm", BROKEN, f"{key}, but {where} does not answer", f"check {BASE} and the network")
    return Finding("llm", GOOD, f"{key}; {where}" + (" answers" if online else ", not asked (--online asks)"))


def _answers(base: str) -> bool:
    parts = urlsplit(base)
    host = parts.hostname or "api.openai.com"
    try:
        with socket.create_connection((host, parts.port or (80 if parts.scheme == "http" else 443)), timeout=5):
            return True
    except OSError:
        return False


TOO_NEW = {"fastapi": ((0, 155), "flows die at import"), "sqlalchemy": ((2, 1), "schedules silently never fire")}
"""First versions with which Prefect 3.8 fails, and how; see constraints.txt."""


def prefect() -> Finding:
    """Versions around Prefect that a plain resolve gets wrong."""
    for package, (limit, effect) in TOO_NEW.items():
        found = version(package)
        if tuple(int(part) for part in found.split(".")[:2]) >= limit:
            return Finding("prefect", BROKEN, f"{package} {found}: {effect}", "pip install -c constraints.txt -e .")
    return Finding(
        "prefect", GOOD, f"{version('prefect')} with fastapi {version('fastapi')}, sqlalchemy {version('sqlalchemy')}"
    )


def prefect_home() -> Finding:
    """Where Prefect keeps its database, whether a server is used and answers; telemetry."""
    import flows

    server = os.environ.get("PREFECT_API_URL", "")
    home = os.environ.get("PREFECT_HOME", "prefect below the work folder")
    off = os.environ.get("DO_NOT_TRACK") == "1" or os.environ.get("PREFECT_SERVER_ANALYTICS_ENABLED") == "false"
    text = f"server {server or 'embedded'}, home {home}, telemetry {'off' if off else 'on'}"
    if server and not _healthy(server):
        return Finding("prefect home", BROKEN, f"{text}; it does not answer", "start it, or unset PREFECT_API_URL")
    if not off:
        return Finding("prefect home", MISSING, text, f"unset DO_NOT_TRACK so that {flows.__name__} can switch it off")
    return Finding("prefect home", GOOD, text)


def _healthy(server: str) -> bool:
    try:
        with urllib.request.urlopen(f"{server}/health", timeout=5):
            return True
    except (OSError, ValueError):
        return False


def store(url: str) -> Finding:
    """Whether the store can be read and written."""
    from artifacts.memory.files import Files
    from artifacts.memory.store import MemoryStore

    try:
        names = MemoryStore(url).names()
        probe = Files(url)
        if not probe.exists():
            return Finding("store", GOOD, f"{url} does not exist yet, the first build makes it")
        probe.require_writable()
    except (HtamError, OSError) as problem:
        return Finding("store", BROKEN, f"{url}: {problem}", "choose another --store, or correct its rights")
    return Finding("store", GOOD, f"{url} can be written; memories: {', '.join(names) or 'none yet'}")
