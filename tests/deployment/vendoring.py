"""Write the part of the published schemas that our examples need.

Usage: pip download --no-deps -d WHEELS kubernetes-validate check-jsonschema
       python -m tests.deployment.vendoring WHEELS 1.36 1.37
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

FOLDER = Path(__file__).parent / "schemas"
# as manifests name them, with the name of their definition
KINDS = {
    "apps/v1 Deployment": "io.k8s.api.apps.v1.Deployment",
    "autoscaling/v2 HorizontalPodAutoscaler": "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
    "batch/v1 Job": "io.k8s.api.batch.v1.Job",
    "policy/v1 PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
    "v1 ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "v1 Secret": "io.k8s.api.core.v1.Secret",
    "v1 Service": "io.k8s.api.core.v1.Service",
}
DEFINITIONS = "#/$defs/"


def main(wheels: Path, *releases: str) -> None:
    with ZipFile(next(wheels.glob("check_jsonschema-*.whl"))) as archive:
        compose = archive.read("check_jsonschema/builtin_schemas/vendor/compose-spec.json")
    _write("compose.json", _strip(json.loads(compose)))
    with ZipFile(next(wheels.glob("kubernetes_validate-*.whl"))) as archive:
        for release in releases:
            folder = f"kubernetes_validate/kubernetes-json-schema/v{release}.0-local-strict"
            definitions = _strip(json.loads(archive.read(f"{folder}/_definitions.json")))["$defs"]
            needed = _find_needed(definitions, KINDS.values())
            _write(f"kubernetes-{release}.json", {"$defs": needed})


def _strip(value: Any) -> Any:
    """Remove the prose, and name each definition by its place in the file."""
    if isinstance(value, list):
        return [_strip(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {
        key: _strip(item)
        for key, item in value.items()
        if not (key == "description" and isinstance(item, str)) and not key.startswith("x-")
    }
    if isinstance(reference := kept.get("$ref"), str) and DEFINITIONS in reference:
        kept["$ref"] = DEFINITIONS + reference.rpartition("/")[2]
    return kept


def _find_needed(definitions: dict[str, Any], roots: Any) -> dict[str, Any]:
    needed: dict[str, Any] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed[name] = definitions[name]
            waiting += _list_references(definitions[name])
    return dict(sorted(needed.items()))


def _list_references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for item in value for name in _list_references(item)]
    if not isinstance(value, dict):
        return []
    own = value.get("$ref")
    names = [own.removeprefix(DEFINITIONS)] if isinstance(own, str) else []
    return [*names, *(name for item in value.values() for name in _list_references(item))]


def _write(name: str, schema: Any) -> None:
    text = json.dumps(schema, separators=(",", ":"), sort_keys=True)
    (FOLDER / name).write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
