"""The examples of deployment: valid by the published schemas, with settings that are ours, and with
what a careful operator would ask of them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from om_proxy.cli.entry import build_parser
from om_proxy.common.errors import ConfigError
from om_proxy.settings.config import Settings, list_warnings, parse
from om_proxy.wire.server.graceful_server import STOP_TIMES
from tests.deployment.vendoring import FOLDER, KINDS

EXAMPLES = Path(__file__).parents[2] / "examples"
REPLICAS = EXAMPLES / "replicas"
RELEASES = ("1.36", "1.37")
EXIT_S = 35  # after SIGTERM
# what an operator fills in
SECRETS = {
    "database-url": "postgresql://om:secret@postgres:5432/om",
    "admin-token": "a" * 16,
    "client-key": "b" * 16,
    "openai-api-key": "c",
    "metrics-token": "d" * 16,
}
# of PostgreSQL as it comes: `max_connections` without `superuser_reserved_connections`
FREE_CONNECTIONS = 100 - 3

Document = dict[str, Any]


def list_faults(schema: Document, value: Any) -> list[str]:
    return [
        f"{error.json_path}: {error.message[:200]}"
        for error in Draft202012Validator(schema).iter_errors(value)
    ]


def read_schema(name: str) -> Document:
    schema: Document = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return schema


# ── compose ───────────────────────────────────────────────────────────────────────────────────────

COMPOSE_FILES = [
    EXAMPLES / "compose.yaml",
    EXAMPLES / "compose-open-webui.yaml",
    REPLICAS / "compose.yaml",
]


def read_compose(file: Path) -> Document:
    document: Document = yaml.safe_load(file.read_text(encoding="utf-8"))
    return document


@pytest.mark.parametrize("file", COMPOSE_FILES, ids=lambda file: file.relative_to(EXAMPLES))
def test_compose_file(file: Path) -> None:
    schema, document = read_schema("compose.json"), read_compose(file)
    assert list_faults(schema, document) == []
    first = next(iter(document["services"].values()))
    first["replica"] = 3  # so that the schema is seen to refuse what it does not know
    assert list_faults(schema, document) != []


def test_replicas_and_worker_of_the_compose_file() -> None:
    """All have the same few rights and settings of ours, which leave the notes to the worker."""
    services = read_compose(REPLICAS / "compose.yaml")["services"]
    ours = {name: services[name] for name in services if name not in ("postgres", "nginx")}
    assert list(ours) == ["om-proxy-1", "om-proxy-2", "om-proxy-3", "worker"]
    command = ours["worker"].pop("command")
    assert build_parser().parse_args(command[1:]).worker
    assert len({json.dumps(service) for service in ours.values()}) == 1
    service = ours["worker"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert int(service["stop_grace_period"].removesuffix("s")) >= EXIT_S
    assert service["volumes"] == [".:/app/config:ro"]
    variables = {
        name: re.sub(r"\$\{(\w+):\?\}", r"\1-of-16-or-more", value)
        for name, value in service["environment"].items()
    }
    settings = parse((REPLICAS / "om-proxy.yaml").read_text(encoding="utf-8"), env=variables)
    require_shared_work(settings)
    assert "postgres" in services


def require_shared_work(settings: Settings) -> None:
    """Raise AssertionError unless replicas with these settings can leave all work to a worker."""
    assert settings.background.external
    assert settings.storage.is_postgres
    assert settings.auth.keys
    assert not settings.may_need_caller
    assert list_warnings(settings) == []
    assert not settings.server.is_loopback


# ── Kubernetes ────────────────────────────────────────────────────────────────────────────────────


def read_manifests() -> list[Document]:
    return [
        document
        for file in ("secret.yaml", "om-proxy.yaml")
        for document in yaml.safe_load_all(
            (EXAMPLES / "kubernetes" / file).read_text(encoding="utf-8")
        )
    ]


def find_manifest(kind: str, name: str = "om-proxy") -> Document:
    (found,) = [
        document
        for document in read_manifests()
        if (document["kind"], document["metadata"]["name"]) == (kind, name)
    ]
    return found


def list_pods() -> Iterator[tuple[Document, Document]]:
    """Yield each pod's specification with its one container."""
    for document in read_manifests():
        if document["kind"] in ("Deployment", "Job"):
            pod = document["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            yield pod, container


@pytest.mark.parametrize("release", RELEASES)
def test_manifests(release: str) -> None:
    definitions = read_schema(f"kubernetes-{release}.json")
    used = set()
    for document in read_manifests():
        kind = f"{document['apiVersion']} {document['kind']}"
        used.add(kind)
        schema = definitions | {"$ref": f"#/$defs/{KINDS[kind]}"}
        assert list_faults(schema, document) == [], kind
        wrong = copy.deepcopy(document)
        wrong["metadata"]["nam"] = "x"
        assert list_faults(schema, wrong) != [], kind
    assert used == set(KINDS)


def test_pods_have_few_rights() -> None:
    for pod, container in list_pods():
        security = pod["securityContext"] | container["securityContext"]
        assert security["runAsNonRoot"] is True
        assert (security["runAsUser"], security["runAsGroup"]) == (10001, 10001)
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert pod["automountServiceAccountToken"] is False
        assert container["resources"]["limits"]["memory"] == "768Mi"


def parse_settings(container: Document, secret: dict[str, str]) -> Settings:
    variables = {}
    for item in container["env"]:
        reference = item["valueFrom"]["secretKeyRef"]
        assert reference["name"] == "om-proxy"
        variables[item["name"]] = secret[reference["key"]]
    return parse(find_manifest("ConfigMap")["data"]["om-proxy.yaml"], env=variables)


def test_no_pod_starts_with_the_secret_as_it_stands() -> None:
    """Each value is empty; no store and no credential that lets in may stay so."""
    assert find_manifest("Secret")["stringData"] == dict.fromkeys(SECRETS, "")
    for _, container in list_pods():
        for name in ("database-url", "admin-token", "client-key"):
            with pytest.raises(ConfigError):
                parse_settings(container, SECRETS | {name: ""})


def test_an_empty_metrics_token_opens_nothing() -> None:
    _, container = next(list_pods())
    assert (
        parse_settings(container, SECRETS | {"metrics-token": ""}).telemetry.metrics_token is None
    )


def test_connections_suffice() -> None:
    """All replicas, those that a rollout adds, the workers and the job fit into one PostgreSQL."""
    most = find_manifest("HorizontalPodAutoscaler")["spec"]["maxReplicas"]
    surge = find_manifest("Deployment")["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
    workers = find_manifest("Deployment", "om-proxy-worker")["spec"]["replicas"]
    # the workers' Deployment adds one in a rollout, too
    processes = most + surge + workers + 1 + 1
    _, container = next(list_pods())
    settings = parse_settings(container, SECRETS)
    assert processes * settings.server.workers * settings.storage.connections <= FREE_CONNECTIONS


def test_images_are_not_asked_for_again() -> None:
    """A node that has the image starts it, also while the registry is away."""
    for _, container in list_pods():
        assert container["imagePullPolicy"] == "IfNotPresent"


def test_pods_have_the_settings() -> None:
    """Credentials come from the secret, the rest from the map; every name in use is there."""
    for pod, container in list_pods():
        settings = parse_settings(container, SECRETS)
        require_shared_work(settings)
        assert settings.telemetry.metrics_token is not None
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        assert mounts["/app/config"]["configMap"]["name"] == "om-proxy"
        assert "emptyDir" in mounts["/data"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                asked = container[probe]["httpGet"]
                assert asked["path"] == ("/readyz" if probe == "readinessProbe" else "/healthz")
                assert asked["port"] == settings.server.port
        for port in container.get("ports", ()):
            assert port["containerPort"] == settings.server.port


def test_pods_end_in_time() -> None:
    """The Service has left a pod out before it stops listening, and no stream is cut early."""
    for name in ("om-proxy", "om-proxy-worker"):
        pod = find_manifest("Deployment", name)["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        pause = container.get("lifecycle", {"preStop": {"sleep": {"seconds": 0}}})
        pause_s = pause["preStop"]["sleep"]["seconds"]
        assert pod["terminationGracePeriodSeconds"] >= pause_s + EXIT_S
        ready = container["readinessProbe"]
        assert name == "om-proxy-worker" or pause_s > ready["periodSeconds"]
    assert STOP_TIMES.process < EXIT_S


def test_manifests_name_each_other() -> None:
    deployment = find_manifest("Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert find_manifest("Service")["spec"]["selector"] == labels
    budget = find_manifest("PodDisruptionBudget")["spec"]
    assert budget["selector"]["matchLabels"] == labels
    assert budget["maxUnavailable"] < deployment["spec"]["replicas"]
    scaler = find_manifest("HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaler["minReplicas"] == deployment["spec"]["replicas"]
    (metric,) = scaler["metrics"]
    assert metric["resource"]["name"] == "cpu"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] == "1", "a process runs on one core"


def test_commands_of_the_manifests() -> None:
    parser = build_parser()
    for _, container in list_pods():
        program, *arguments = container["command"]
        assert program == "om-proxy"
        assert parser.parse_args(arguments).command == arguments[0]
