"""Two hours of a team's service in minutes: a rebuild and a tuning run every five minutes, processes killed at random.

    python -P benchmarks/soak.py [--rounds 24] [--seed 0]

A round stands for five minutes. It adds a small run to the logs, asks ``htam serve`` for a rebuild and for a tuning
run (recorded answers, real builds and checks on the CPU by two workers of a pool; every sixth one is a good candidate
that is timed at length, the others fail in seconds), and in two rounds of three kills one process at random: a flow, a
tuning run, or a worker. What was killed is asked for again, as an operator or the next tick of the schedule would do.
Then the workers get two leases to do what killed ones left, as a pool promises, everything is ended in order, and the
host is looked over: processes, open files, locks, temporary files, half-written versions, measurements that were lost
or done twice (each by name), and whether one undisturbed build equals a build from nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from results_file import write_results  # noqa: E402
from soak_answers import write_quick  # noqa: E402
from soak_leftovers import files_below, locks_below, open_files, processes, resident_mib, shared_memory  # noqa: E402
from soak_logs import write_run  # noqa: E402

from artifacts.memory.store import MemoryStore  # noqa: E402
from artifacts.runlog import RunLog  # noqa: E402
from optimizer.evaluation.pool.folder import PoolFolder  # noqa: E402

EXAMPLES = REPOSITORY / "examples"
FULL_EVERY = 6
SETTINGS = """
[service]
work = "{base}/work"
port = 0
parallel = 2

[[rebuild]]
name = "soak"
logs = ["{base}/logs"]
store = "{base}/store"
model = "hashing"

[[optimize]]
name = "tuning"
tasks = ["{base}/quick/rectifier.py"]
runs = "{base}/tuned"
arm = "feedback"
llm = "replay:{base}/quick/quick.jsonl"
evaluator = "pool:{base}/pool"
steps = 2
"""
VICTIMS = {"flow": "prefect", "tuning": "pipeline optimize", "worker": "evaluation.worker"}
PATIENCE_S = 240.0
LEASE_S = 10.0
"""Two minutes would be most of a compressed round."""


class House:
    """The service, its workers and its folders below ``base``."""

    def __init__(self, base: Path) -> None:
        self.base = base
        (base / "logs").mkdir()
        (base / "tmp").mkdir()
        self.quick = write_quick(base / "quick")
        PoolFolder(base / "pool", lease_s=LEASE_S)
        (base / "team.toml").write_text(SETTINGS.format(base=base))
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self.environment = clean | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(base / "tmp"), "HTAM_SOAK": str(base)}
        self.log = (base / "service.log").open("ab")
        self.serve = self.start("-m", "pipeline", "serve", str(base / "team.toml"))
        self.workers = [self.start_worker() for _ in range(2)]

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """One of our processes."""
        command = [sys.executable, "-P", *words]
        return subprocess.Popen(command, stdout=self.log, stderr=self.log, env=self.environment, start_new_session=True)

    def start_worker(self) -> subprocess.Popen[bytes]:
        """A worker of the pool."""
        words = ("--pool", str(self.base / "pool"), "--backend", "cpu", "--builders", "1")
        return self.start("-m", "optimizer.evaluation.worker", *words, "--cache", str(self.base / "cache"))

    def mend(self) -> None:
        """Start workers that were killed anew, as an init system would."""
        self.workers = [self.start_worker() if worker.poll() is not None else worker for worker in self.workers]

    def kill(self, kind: str, rng: random.Random) -> bool:
        """Kill one process of a kind; False when there is none."""
        marks = {pid: words for pid, words in processes(str(self.base)).items() if VICTIMS[kind] in words}
        if kind == "flow":
            marks = {pid: words for pid, words in marks.items() if "server" not in words and "worker" not in words}
        if not marks:
            return False
        with suppress(ProcessLookupError):
            os.kill(rng.choice(sorted(marks)), signal.SIGKILL)
        return True

    def settle(self) -> None:
        """Let the living workers find what killed ones left: that takes one lease, and the jobs that come back."""
        self.mend()
        end = time.monotonic() + 2 * LEASE_S + PATIENCE_S
        while (in_pool(self.base, "jobs", "leases") or self.cards() != len(self.workers)) and time.monotonic() < end:
            time.sleep(0.3)

    def cards(self) -> int:
        """Workers that say they are there."""
        return len(in_pool(self.base, "workers"))

    def end(self) -> None:
        """End everything in order."""
        self.serve.send_signal(signal.SIGINT)
        for worker in self.workers:
            worker.terminate()
        for process in (self.serve, *self.workers):
            process.wait(120)
        self.log.close()


class Office:
    """Asks the service for runs through its API."""

    def __init__(self, house: House) -> None:
        until(lambda: "pages and on-demand runs" in (house.base / "service.log").read_text(errors="replace"), 240)
        text = (house.base / "service.log").read_text(errors="replace")
        os.environ["PREFECT_API_URL"] = text.partition("on-demand runs: ")[2].partition(";")[0] + "/api"
        from prefect.client.orchestration import get_client

        self._client: Any = get_client(sync_client=True)
        self._known: dict[str, Any] = {}

    def ask(self, name: str, **parameters: Any) -> Any:
        """Id of a new run of a deployment."""
        if name not in self._known:
            until(lambda: self._found(name), 120)
        return self._client.create_flow_run_from_deployment(self._known[name], parameters=parameters).id

    def _found(self, name: str) -> bool:
        from prefect.exceptions import ObjectNotFound

        with suppress(ObjectNotFound):
            self._known[name] = self._client.read_deployment_by_name(name).id
        return name in self._known

    def state(self, run: Any) -> str:
        """Completed, Failed, Crashed, ..., or empty while it runs."""
        state = self._client.read_flow_run(run).state
        return state.type.value if state is not None and state.is_final() else ""


def main() -> None:
    """Disturb, then look."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=24, help="of five minutes each")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    base, before = Path(tempfile.mkdtemp(prefix="htam-soak-")), shared_memory()
    begin = time.monotonic()
    try:
        figures = soak(base, options.rounds, random.Random(options.seed))
        figures["shared_memory_left"] = len(shared_memory() - before)
    except BaseException:
        print((base / "service.log").read_text(errors="replace")[-4000:], file=sys.stderr)
        raise
    finally:
        for pid in processes(str(base)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(base, ignore_errors=True)
    figures |= {"seed": options.seed, "stands_for_hours": options.rounds / 12, "took_s": time.monotonic() - begin}
    print("\n".join(f"{name:<28}{value}" for name, value in figures.items()))
    write_results("soak", figures)
    bad = [name for name in ("left_processes", "left_locks", "half_written", "lost", "done_twice") if figures[name]]
    if bad or not figures["same_as_fresh"] or not figures["all_verified"]:
        raise SystemExit(f"something was left behind: {', '.join(bad)}")


def soak(base: Path, rounds: int, rng: random.Random) -> dict[str, Any]:
    """All rounds, then the look around."""
    house = House(base)
    office = Office(house)
    counts: Counter[str] = Counter()
    samples: list[tuple[int, int, float]] = []
    for number in range(rounds):
        write_run(base / "logs" / f"r{number}", f"r{number}", rng)
        counts += play(house, office, number, rng)
        lasting = [house.serve.pid, *(worker.pid for worker in house.workers), *servers(base)]
        samples.append((len(processes(str(base))), open_files(lasting), resident_mib(lasting)))
        print(f"round {number + 1}: {dict(counts)}, processes, files and MiB {samples[-1]}", flush=True)
    house.settle()
    house.end()
    end = time.monotonic() + LEASE_S
    while processes(str(base)) and time.monotonic() < end:
        time.sleep(0.3)
    early, late = samples[min(3, rounds - 1)], samples[-1]
    growth = {"processes": [early[0], late[0]], "open_files": [early[1], late[1]], "resident_mib": [early[2], late[2]]}
    left = {"left_processes": len(processes(str(base))), "left_locks": locks_below(base)}
    return {"rounds": rounds, **counts, "after_round_4_and_last": growth} | left | examined(base, rounds)


def servers(base: Path) -> list[int]:
    """Prefect's server processes."""
    return [pid for pid, words in processes(str(base)).items() if "prefect" in words and "server" in words]


def play(house: House, office: Office, number: int, rng: random.Random) -> Counter[str]:
    """One round: both runs until they are done, with a kill at a random moment in two rounds of three."""
    counts: Counter[str] = Counter()
    wanted = {"rebuild-on-new-logs/soak": {}, "optimize-suite/tuning": tuning(house, number)}
    runs = {name: office.ask(name, **parameters) for name, parameters in wanted.items()}
    strike = time.monotonic() + rng.uniform(0.0, 12.0) if rng.random() < 2 / 3 else None
    kind = rng.choice(sorted(VICTIMS))
    end = time.monotonic() + PATIENCE_S
    while runs:
        if strike is not None and time.monotonic() > strike and house.kill(kind, rng):
            counts[f"killed_{kind}"] += 1
            strike = None
        house.mend()
        for name, run in list(runs.items()):
            state = office.state(run)
            if state == "COMPLETED":
                del runs[name]
            elif state:
                counts["asked_again"] += 1
                runs[name] = office.ask(name, **wanted[name])
        if time.monotonic() > end:
            raise SystemExit(f"round {number} does not end: {sorted(runs)}")
        time.sleep(0.3)
    return counts


def tuning(house: House, number: int) -> dict[str, Any]:
    """Parameters of a round's tuning run."""
    task, answers = house.quick
    if number % FULL_EVERY == FULL_EVERY - 1:
        task, answers = EXAMPLES / "tasks" / "cpu" / "row_softmax.py", EXAMPLES / "cassettes" / "demo.jsonl"
    options = {"arm": "feedback", "llm": f"replay:{answers}", "steps": "2", "backend": "cpu"}
    options["evaluator"] = f"pool:{house.base / 'pool'}"
    return {"runs": str(house.base / "tuned" / f"r{number}"), "tasks": [str(task)], "options": options}


def examined(base: Path, rounds: int) -> dict[str, Any]:
    """What is in the folders, and one more build that nobody disturbs beside one from nothing."""
    store = MemoryStore(str(base / "store"))
    verified = 0
    for version in store.versions("soak"):
        store.verify("soak", version)
        verified += 1
    built = [build(base, *folders) for folders in (("work", "store"), ("fresh-work", "fresh-store"))]
    tuned = {run.parent.name: measured(run) for run in (base / "tuned").glob("*/*") if RunLog.is_run(run)}
    short = [f"tuning {name}" for name in (f"r{number}" for number in range(rounds)) if len(tuned.get(name, ())) < 2]
    return {
        "versions": verified,
        "all_verified": verified == len(store.versions("soak")),
        "half_written": sum(path.name.startswith(".tmp-") for path in (base / "store" / "soak").iterdir()),
        "same_as_fresh": built[0] == built[1],
        "tuning_runs": len(tuned),
        "measurements": sum(len(keys) for keys in tuned.values()),
        "lost": short + in_pool(base, "jobs", "leases", "workers"),
        "done_twice": [f"{name}: {key}" for name, keys in tuned.items() for key in set(keys) if keys.count(key) > 1],
        "temporary_files": files_below(base / "tmp"),
        "gpu": "none on this host",
    }


def in_pool(base: Path, *folders: str) -> list[str]:
    """Names of all files in parts of the pool."""
    return [f"pool/{folder}/{name}" for folder in folders for name in files_below(base / "pool" / folder)]


def measured(run: Path) -> list[str]:
    """Keys of the measurements in a run."""
    return [event.key for event in RunLog.open(run).events() if event.kind == "measurement"]


def build(base: Path, work: str, store: str) -> str:
    """Build all logs and return the version."""
    words = ["memory", "build", "--logs", str(base / "logs"), "--name", "soak", "--model", "hashing", "--force"]
    command = [sys.executable, "-P", "-m", "pipeline", *words, "--work", str(base / work), "--store", str(base / store)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    environment.pop("PREFECT_API_URL", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return json.dumps(done.stdout.split()[-1])


def until(condition: Callable[[], bool], limit_s: float) -> None:
    """Wait for ``condition``."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("the service does not answer")
        time.sleep(0.3)


if __name__ == "__main__":
    main()
