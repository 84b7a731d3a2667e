import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.commands import doctor


def test_a_foreign_package_under_one_of_our_names_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows/__init__.py").touch()
    import importlib.util

    real = importlib.util.find_spec
    foreign = importlib.util.spec_from_file_location("flows", tmp_path / "flows/__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: foreign if name == "flows" else real(name))
    finding = doctor.packages()
    assert finding.status == doctor.BROKEN
    assert "flows is imported from" in finding.text


def test_our_own_packages_are_not_taken_for_foreign() -> None:
    assert doctor.packages().status == doctor.GOOD


def test_a_key_is_reported_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(doctor.KEY, "sk-secret")
    finding = doctor.endpoint(online=False)
    assert finding.status == doctor.GOOD
    assert "secret" not in finding.text + finding.fix


def test_an_endpoint_that_does_not_answer_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(doctor.BASE, "http://127.0.0.1:9/v1")
    assert doctor.endpoint(online=True).status == doctor.BROKEN


@pytest.mark.parametrize(("package", "found"), [("fastapi", "0.155.0"), ("sqlalchemy", "2.1.3")])
def test_versions_that_break_prefect_are_named(package: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: found if name == package else "0.1.0")
    finding = doctor.prefect()
    assert finding.status == doctor.BROKEN
    assert f"{package} {found}" in finding.text


def test_a_prefect_server_that_does_not_answer_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    finding = doctor.prefect_home()
    assert finding.status == doctor.BROKEN
    assert "127.0.0.1:9" in finding.text


def test_the_installed_versions_fit_prefect() -> None:
    assert doctor.prefect().status == doctor.GOOD


def test_a_store_that_cannot_be_written_is_broken(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert doctor.store(str(tmp_path / "file")).status == doctor.BROKEN


def test_looking_at_a_store_leaves_nothing_in_it(tmp_path: Path) -> None:
    assert doctor.store(str(tmp_path)).status == doctor.GOOD
    assert list(tmp_path.iterdir()) == []


def test_the_findings_can_be_read_by_a_program(tmp_path: Path) -> None:
    result = CliRunner().invoke(doctor.command, ["--store", str(tmp_path), "--json"])
    assert {"python", "packages", "sandbox", "store"} <= {finding["subject"] for finding in json.loads(result.output)}


def test_what_a_candidate_can_still_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from optimizer.evaluation.sandbox import probe

    found = probe.Features(layers=("rlimits",), barred={"use_network": False, "start_program": True})
    monkeypatch.setattr(probe, "features", lambda: found)
    finding = doctor.sandbox()
    assert finding.status == doctor.MISSING
    assert "can still: use network" in finding.text
