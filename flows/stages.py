"""The stages of a build as Prefect tasks: each is a function of :mod:`builder.build` and has its name.

Nothing large is kept by Prefect: described logs and vectors are remembered by content in the work folder, so a build
that was interrupted continues where it stopped, whichever worker runs it.
"""

from __future__ import annotations

from prefect import task

from builder import build
from flows.engine import MAPPED, STAGE

read = task(name="read", **STAGE)(build.read)
describe = task(name="describe", **MAPPED)(build.describe)
gathered = task(name="gather", **STAGE)(build.gathered)
texts = task(name="cut-texts", **STAGE)(build.texts)
embed = task(name="embed", **MAPPED)(build.embed)
cluster = task(name="cluster", **STAGE)(build.cluster)
link = task(name="link", **STAGE)(build.link)
validate = task(name="validate", **STAGE)(build.validate)
publish = task(name="publish", **MAPPED)(build.published)
