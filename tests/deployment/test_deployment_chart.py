"""The chart: what it makes without changed values are the manifests, and each value has an effect."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml

from om_proxy import __version__
from tests.deployment.chart import render_chart
from tests.deployment.test_deployment import (
    EXAMPLES,
    RELEASES,
    list_faults,
    read_manifests,
    read_schema,
)
from tests.deployment.vendoring import KINDS

CHART = EXAMPLES / "helm"
Documents = dict[tuple[str, str], Any]


def render(**changes: Any) -> Documents:
    return by_name(render_chart(CHART, "om-proxy", changes))


def by_name(documents: list[Any]) -> Documents:
    """Return the documents by kind and name, the settings parsed and variables in order."""
    named = {}
    for document in copy.deepcopy(documents):
        name = document["metadata"]["name"]
        if document["kind"] == "ConfigMap":
            document["data"] = {
                file: yaml.safe_load(text) for file, text in document["data"].items()
            }
        for container in list_containers(document):
            container["env"].sort(key=lambda variable: variable["name"])
        named[document["kind"], name] = document
    return named


def list_containers(document: Any) -> list[Any]:
    template = document["spec"].get("template", {}) if "spec" in document else {}
    containers: list[Any] = template["spec"]["containers"] if template else []
    return containers


def test_the_chart_makes_the_manifests() -> None:
    """But for the secret, which is made by hand, the job's number, replicas that only the
    autoscaler sets, and a mark by which new settings reach the pods."""
    rendered = render()
    job = rendered.pop(("Job", "om-proxy-migrate-1"))
    job["metadata"]["name"] = "om-proxy-migrate"
    rendered["Job", "om-proxy-migrate"] = job
    for name in ("om-proxy", "om-proxy-worker"):
        metadata = rendered["Deployment", name]["spec"]["template"]["metadata"]
        assert re.fullmatch(r"[0-9a-f]{64}", metadata.pop("annotations")["config"])
    wanted = by_name(read_manifests())
    del wanted["Secret", "om-proxy"], wanted["Deployment", "om-proxy"]["spec"]["replicas"]
    assert rendered == wanted


@pytest.mark.parametrize("release", RELEASES)
def test_what_it_makes_is_valid(release: str) -> None:
    definitions = read_schema(f"kubernetes-{release}.json")
    for document in render_chart(CHART, "another", {}):
        kind = f"{document['apiVersion']} {document['kind']}"
        schema = definitions | {"$ref": f"#/$defs/{KINDS[kind]}"}
        assert list_faults(schema, document) == [], kind
        assert document["metadata"]["name"].startswith("another")


VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", VALUES)
def test_each_value_has_an_effect(name: str) -> None:
    value = VALUES[name]
    changed: Any = f"{value}-2" if isinstance(value, str) else 7
    if isinstance(value, dict):
        key = next(iter(value))
        changed = value | {key: f"{value[key]}-2" if isinstance(value[key], str) else 7}
    assert render(**{name: changed}) != render()


def test_new_settings_reach_the_pods() -> None:
    for name in ("om-proxy", "om-proxy-worker"):
        before, after = (
            documents["Deployment", name]["spec"]["template"]
            for documents in (render(), render(config={"storage": {"connections": 2}}))
        )
        assert before != after


def test_the_chart_names_the_version() -> None:
    """It is short, and of the version that the package names."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["name"], chart["version"], chart["appVersion"]) == (
        "om-proxy", __version__, __version__,
    )  # fmt: skip
    files = [file for file in CHART.rglob("*") if file.is_file()]
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) < 200
