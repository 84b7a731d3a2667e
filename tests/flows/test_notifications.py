"""Who is told: the settings' own mistakes, and what the server then knows; test_serve.py hears one of a real run."""

from typing import Any

import pytest

from flows.notifications import Notification


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": "ftp://x"}, "http"),
        ({"url": "https:///services/x"}, "no address"),
        ({"url": "http://x", "on": ("sometimes",)}, "sometimes"),
    ],
)
def test_a_notification_that_could_reach_nobody_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Notification(**given)


def test_what_was_told_of_the_same_jobs_before_is_replaced_and_others_stay() -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.sorting import AutomationSort

    from flows.notifications import install

    chat, pager = Notification(url="https://chat.example/x"), Notification(url="https://pager.example/y", on=("kept",))
    install([chat], ["other"])
    install([chat, pager], ["team"])
    install([pager], ["team"])
    with get_client(sync_client=True) as client:
        known = client.read_automations(sort=AutomationSort.NAME_ASC, limit=200)  # the server wants both
    expected = [automation.trigger.expect for automation in known]  # type: ignore[union-attr]
    failures = {"prefect.flow-run.Failed", "prefect.flow-run.TimedOut", "prefect.flow-run.Crashed"}
    assert sorted(map(sorted, expected)) == sorted(map(sorted, [failures, {"prefect.flow-run.Kept"}]))
