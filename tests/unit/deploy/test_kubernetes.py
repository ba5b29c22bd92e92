"""deploy/kubernetes: valid by Kubernetes' schemas, restricted, and in agreement with the broker."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
import yaml

from broker.wire.health import READY
from support.deployment import AFTERWARDS, DEPLOY, dockerfile, image_variables, parsed, port, settings

FOLDER = DEPLOY / "kubernetes"
MANIFESTS: dict[str, Any] = {file.stem: yaml.safe_load(file.read_text()) for file in sorted(FOLDER.glob("*.yaml"))}
OTHERS_SCHEMAS = {"kustomization", "servicemonitor"}
VERSIONS = ["1.30", "1.34"]
DEPLOYMENT = MANIFESTS["deployment"]
POD = DEPLOYMENT["spec"]["template"]["spec"]
(MIGRATION,), (BROKER,) = POD["initContainers"], POD["containers"]
LABELS = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
VARIABLES = {**image_variables(), **MANIFESTS["configmap"]["data"]}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", sorted(MANIFESTS.keys() - OTHERS_SCHEMAS))
def test_a_manifest_follows_the_schema(name: str, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


def test_the_validator_finds_what_is_misspelt() -> None:
    wrong = {**MANIFESTS["service"], "spec": {**MANIFESTS["service"]["spec"], "selektor": {}}}
    with pytest.raises(kubernetes_validate.ValidationError, match="selektor"):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_all_files_are_applied_but_the_example_of_a_secret_and_what_needs_an_operator() -> None:
    listed = set(MANIFESTS["kustomization"]["resources"])
    files = {file.name for file in FOLDER.glob("*.yaml")}
    assert files - listed == {"kustomization.yaml", "secret.example.yaml", "servicemonitor.yaml"}
    assert listed <= files


def test_variables_are_settings_and_the_database_comes_from_the_secret() -> None:
    named = {each["name"]: each for each in BROKER["env"]}
    directory = {each["name"]: each["mountPath"] for each in BROKER["volumeMounts"]}["database"]
    (volume,) = [each["secret"] for each in POD["volumes"] if each["name"] == "database"]
    (key,) = MANIFESTS["secret.example"]["stringData"]
    assert named["HALFMQ_DATABASE_FILE"]["value"] == f"{directory}/{key}"
    assert volume["secretName"] == MANIFESTS["secret.example"]["metadata"]["name"]
    assert settings(BROKER["args"], {**VARIABLES, "HALFMQ_BROKER_ID": "pod"}).name == "pod"
    assert BROKER["envFrom"] == [{"configMapRef": {"name": MANIFESTS["configmap"]["metadata"]["name"]}}]


def test_tables_are_migrated_before_a_broker_starts_which_does_not() -> None:
    assert parsed(MIGRATION["args"])[0] == "migrate"
    assert (MIGRATION["env"], MIGRATION["envFrom"], MIGRATION["image"]) == (
        BROKER["env"],
        BROKER["envFrom"],
        BROKER["image"],
    )
    assert settings(BROKER["args"], VARIABLES).migrate is False


def test_ports_agree() -> None:
    config = settings(BROKER["args"], VARIABLES)
    ports = {each["name"]: each["containerPort"] for each in BROKER["ports"]}
    assert ports == {"grpc": port(config.listen), "metrics": port(config.metrics_listen)}
    served = {each["name"]: (each["port"], each["targetPort"]) for each in MANIFESTS["service"]["spec"]["ports"]}
    assert served == {name: (number, name) for name, number in ports.items()}
    allowed = [rule["ports"][0]["port"] for rule in MANIFESTS["networkpolicy"]["spec"]["ingress"]]
    assert allowed == [ports["grpc"], ports["metrics"]]
    assert MANIFESTS["servicemonitor"]["spec"]["endpoints"][0]["port"] in ports


def test_probes_ask_for_what_the_broker_tells() -> None:
    config = settings(BROKER["args"], VARIABLES)
    probes = {name: BROKER[name]["grpc"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {each["port"] for each in probes.values()} == {port(config.listen)}
    assert probes["readinessProbe"]["service"] == READY
    assert "service" not in probes["livenessProbe"]
    assert "service" not in probes["startupProbe"]


def test_a_drain_may_take_its_time() -> None:
    config = settings(BROKER["args"], VARIABLES)
    _, pause = BROKER["lifecycle"]["preStop"]["exec"]["command"]
    assert POD["terminationGracePeriodSeconds"] > float(pause) + config.drain + AFTERWARDS


def test_there_is_always_another_broker() -> None:
    assert DEPLOYMENT["spec"]["replicas"] >= 2
    assert DEPLOYMENT["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert MANIFESTS["poddisruptionbudget"]["spec"]["minAvailable"] == 1


def test_selectors_find_the_pods() -> None:
    selectors = [
        DEPLOYMENT["spec"]["selector"]["matchLabels"],
        MANIFESTS["service"]["spec"]["selector"],
        MANIFESTS["poddisruptionbudget"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["networkpolicy"]["spec"]["podSelector"]["matchLabels"],
        POD["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ]
    assert all(selector == LABELS for selector in selectors)
    monitor = MANIFESTS["servicemonitor"]["spec"]
    labels = MANIFESTS["service"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    # The alert rules know the brokers by this name.
    assert labels[monitor["jobLabel"]] == "halfmq"


def test_pods_fit_the_restricted_standard() -> None:
    """Of Kubernetes' Pod Security Standards."""
    security = POD["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    (user,) = [text for name, text in dockerfile() if name == "USER"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == user
    for container in (MIGRATION, BROKER):
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]
    assert POD["automountServiceAccountToken"] is False


def test_requests_take_a_part_of_the_memory_only() -> None:
    config = settings(BROKER["args"], VARIABLES)
    assert BROKER["resources"]["limits"]["memory"] == "1Gi"
    assert config.max_request_bytes <= 2**30 // 4
