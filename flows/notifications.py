"""Who is told what became of a run, as automations of the Prefect server that every schedule needs."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit
from uuid import UUID

EVENTS = {
    "failed": ("Failed", "TimedOut"),
    "crashed": ("Crashed",),
    "completed": ("Completed", "Promoted", "Kept", "Unchanged"),
    "promoted": ("Promoted",),
    "kept": ("Kept",),
    "unchanged": ("Unchanged",),
}
"""End of a run that people can be told of → Prefect's names of its states; the last three are those of a rebuild."""

NEWS = """{
 "job": {{ deployment.name | tojson }}, "state": {{ flow_run.state.name | tojson }},
 "message": {{ (flow_run.state.message or "") | tojson }},
 "text": {{ (deployment.name ~ ": " ~ flow_run.state.name ~ ". " ~ (flow_run.state.message or "")) | tojson }}
}"""
"""Body of a notification; chat services show its field ``text``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """Who is told of what.

    Attributes:
        url: gets a POST with the news as JSON, whose field ``text`` is what chat services show.
        on: keys of :data:`EVENTS`.
    """

    url: str
    on: tuple[str, ...] = ("failed", "crashed")

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")) or not urlsplit(self.url).hostname:
            raise ValueError(f"url {self.url!r} is no address of http or https")
        unknown = sorted(set(self.on) - set(EVENTS))
        if unknown:
            raise ValueError(f"state {unknown[0]!r} is not known, one of {', '.join(EVENTS)}")


def install(notifications: Sequence[Notification], jobs: Sequence[str]) -> None:
    """Let the server tell of the runs of the deployments ``jobs``; what it told of them before is replaced."""
    from prefect.automations import Automation
    from prefect.blocks.webhook import Webhook
    from prefect.client.orchestration import get_client
    from prefect.events.actions import CallWebhook
    from prefect.events.schemas.automations import EventTrigger, Posture

    prefix = f"htam-{hashlib.sha256(repr(sorted(jobs)).encode()).hexdigest()[:8]}-"
    with get_client(sync_client=True) as client:
        for number in itertools.count():
            known = client.read_automations_by_name(f"{prefix}{number}")
            if not known:
                break
            for automation in known:
                client.delete_automation(automation.id)
    for number, item in enumerate(notifications):
        name = f"{prefix}{number}"
        hook = Webhook.model_validate({"url": item.url, "headers": {"Content-Type": "application/json"}})
        trigger = EventTrigger(
            expect={f"prefect.flow-run.{state}" for event in item.on for state in EVENTS[event]},
            match_related={"prefect.resource.role": "deployment", "prefect.resource.name": list(jobs)},
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
        )
        block = cast(UUID, hook.save(name, overwrite=True))
        Automation(name=name, trigger=trigger, actions=[CallWebhook(block_document_id=block, payload=NEWS)]).create()
