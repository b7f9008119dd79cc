"""Makes the files of the package that come from elsewhere in the repository.

    python tools/generate.py           write them (`.ci/python generate`)
    python tools/generate.py --check   fail if one is stale

`models.py` comes from the CRD's schema, `remedies.json` from the pages on troubleshooting and on reasons (the plugin
has it, too), and the pictures of the page on Python from the example's notebook and the code that notebooks use.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "python/src/flux_minicluster"
CRD = REPOSITORY / "chart/crd/crd.yaml"
PAGE = REPOSITORY / "docs/troubleshooting.md"
REASONS = REPOSITORY / "docs/reference/conditions.md"
NOTEBOOK = REPOSITORY / "examples/python-client/notebook.ipynb"
PROGRESS_PICTURE = REPOSITORY / "docs/images/python-progress.svg"
RESULT_PICTURE = REPOSITORY / "docs/images/python-result.svg"
VERSION = "v1alpha2"

# The API server checks these, and its answer names the field. The models would check them again, and differently.
CONSTRAINTS = {
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "pattern",
    "uniqueItems",
}

HEADER = '''"""Models of the MiniCluster, flux-framework.org/v1alpha2.

Made from the CRD's schema by `.ci/python generate`: do not edit. Fields have Python's spelling (`max_size`); the API's
spelling (`maxSize`) is accepted as well. A field that this version does not know is kept as it is.
"""
'''


def schema() -> dict[str, Any]:
    """The CRD's schema as a JSON schema whose objects have names."""
    crd = yaml.safe_load(CRD.read_text())
    version = next(it for it in crd["spec"]["versions"] if it["name"] == VERSION)
    root = version["schema"]["openAPIV3Schema"]
    root["properties"] = {
        "apiVersion": {"type": "string", "description": "The API's group and version."},
        "kind": {"type": "string", "description": "The kind of the object: MiniCluster."},
        "metadata": {
            "type": "object",
            "description": "Name, namespace, labels and annotations, as of any Kubernetes object.",
            "additionalProperties": {},
        },
        **root["properties"],
    }
    definitions: dict[str, Any] = {}
    named(root, ["MiniCluster"], definitions)
    return {"$ref": "#/$defs/MiniCluster", "$defs": definitions}


def named(node: dict[str, Any], path: list[str], definitions: dict[str, Any]) -> dict[str, Any]:
    """This schema in the words of JSON schema; each object with fields becomes a definition."""
    plain = {
        key: value
        for key, value in node.items()
        if not key.startswith("x-") and key not in CONSTRAINTS and key != "nullable"
    }
    if node.get("x-kubernetes-int-or-string"):
        plain = {"anyOf": [{"type": "integer"}, {"type": "string"}], "description": node.get("description", "")}
    if "items" in plain:
        plain["items"] = named(plain["items"], [*path[:-1], singular(path[-1])], definitions)
    if isinstance(plain.get("additionalProperties"), dict):
        inner = [*path[:-1], singular(path[-1])]
        plain["additionalProperties"] = named(plain["additionalProperties"], inner, definitions)
    if "properties" in plain:
        plain["properties"] = {
            name: named(value, [*path, name], definitions) for name, value in plain["properties"].items()
        }
        name = define(path, plain, definitions)
        plain = {"$ref": f"#/$defs/{name}"}
        if "description" in node:
            plain["description"] = node["description"]
    if node.get("nullable"):
        description = plain.pop("description", "")
        plain = {"anyOf": [plain, {"type": "null"}], "description": description}
    return plain


def define(path: list[str], definition: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Adds the definition under a name of its own, the shortest that is free; equal ones share a name."""

    def shape(of: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in of.items() if key != "description"}

    words = [word[:1].upper() + word[1:] for word in path]
    candidates = ["".join(words[-count:]) for count in range(1, len(words) + 1)]
    if path[-1] in ("spec", "status"):
        candidates = candidates[1:]
    for name in candidates:
        # `FluxUser` and `Fluxuser` are one field in two spellings.
        taken = next((it for it in definitions if it.lower() == name.lower()), None)
        if taken is None:
            definitions[name] = definition
            return name
        if shape(definitions[taken]) == shape(definition):
            return taken
    raise SystemExit(f"generate: no name is free for {'.'.join(path)}")


def singular(word: str) -> str:
    return word.removesuffix("s")


def models() -> str:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "schema.json"), Path(folder, "models.py")
        source.write_text(json.dumps(schema()))
        subprocess.run(
            [
                sys.executable,
                "-m",
                "datamodel_code_generator",
                *("--input", str(source)),
                *("--output", str(target)),
                *("--input-file-type", "jsonschema"),
                *("--output-model-type", "pydantic_v2.BaseModel"),
                *("--target-python-version", "3.10"),
                *("--class-name", "MiniCluster"),
                *("--extra-fields", "allow"),
                *("--formatters", "ruff-format"),
                "--allow-population-by-field-name",
                "--disable-timestamp",
                "--snake-case-field",
                "--enum-field-as-literal",
                "all",
                "--use-annotated",
                "--use-attribute-docstrings",
                "--use-double-quotes",
                "--use-field-description",
                "--use-generic-base-class",
                "--use-schema-description",
                "--use-single-line-docstring",
                "--use-standard-collections",
                "--use-union-operator",
            ],
            check=True,
        )
        text = target.read_text()
    text = re.sub(r"\A(#.*\n)+", "", text)
    return HEADER + text


def remedies() -> str:
    """Each reason with its section of the troubleshooting page, or else its meaning, as plain text."""
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in PAGE.read_text().splitlines():
        if line.startswith("### "):
            current = sections.setdefault(line.removeprefix("### "), [])
        elif line.startswith("#"):
            current = None
        elif current is not None:
            current.append(plain_text(line))
    texts = {reason: "\n".join(lines).strip() for reason, lines in sections.items()}
    # Reasons that have a section are links in this table.
    for reason, meaning in re.findall(r"^\| ([A-Z]\w+) \| (.+) \| \w* \|$", REASONS.read_text(), re.MULTILINE):
        texts.setdefault(reason, plain_text(f"{meaning[0].upper()}{meaning[1:]}."))
    return json.dumps(texts, indent=1, ensure_ascii=False) + "\n"


def plain_text(line: str) -> str:
    """A line without Markdown's links and quotes."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).replace("`", "").replace("**", "")


# A job of four pods, whose images are on the nodes.
FINISHED = {
    "metadata": {"name": "run-7f3c", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"size": 4},
    "status": {
        "phase": "Completed",
        "conditions": [{"type": "Complete", "status": "True"}],
        "exitCode": 0,
        "reason": "Completed",
        "readySize": 4,
        "startTime": "2026-01-01T00:00:00Z",
        "completionTime": "2026-01-01T00:00:17Z",
        "timeline": {
            "scheduled": "2026-01-01T00:00:01Z",
            "running": "2026-01-01T00:00:03Z",
            "ready": "2026-01-01T00:00:05Z",
        },
    },
}


def progress_picture() -> str:
    """The notebook's cell that runs the job, with what is below it while the last broker connects."""
    from flux_minicluster.observed import Observed
    from flux_minicluster.progress import stages

    waiting = {**FINISHED, "status": {"jobUid": "job", "reason": "BrokersNotReady", "readySize": 3}}
    pods = {f"run-7f3c-{index}-x": running_pod(index) for index in range(4)}
    return cell("run", [str(stage) for stage in stages(Observed(waiting, pods))])


def running_pod(index: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"run-7f3c-{index}-x",
            "uid": str(index),
            "labels": {
                "batch.kubernetes.io/job-completion-index": str(index),
                "batch.kubernetes.io/controller-uid": "job",
            },
        },
        "spec": {"nodeName": "node", "containers": [{"name": "main"}]},
        "status": {"containerStatuses": [{"name": "main", "restartCount": 0, "state": {"running": {}}}]},
    }


def result_picture() -> str:
    """The notebook's cell that shows the result."""
    from flux_minicluster.result import Result

    shown = re.fullmatch(r"<p>(.*)</p>\n(.*)", Result.of(FINISHED, "")._repr_html_(), re.DOTALL)
    assert shown is not None
    return cell("timeline", [html.unescape(shown[1])], shown[2])


def cell(name: str, lines: list[str], svg: str = "") -> str:
    """A cell of the example's notebook with its output, in SVG."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    source = "".join(next(it for it in cells if it["id"] == name)["source"])
    inner = re.search(r'viewBox="0 0 \d+ (\d+)"', svg)
    inner_height = int(inner[1]) if inner else 0
    height = 48 + 20 * len(lines) + inner_height
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" width="720" font-family="monospace" '
        'font-size="13" fill="#5f6368">',
        '  <rect x="1" y="1" width="718" height="30" fill="#f5f5f5" stroke="#cfcfcf"/>',
        f'  <text x="10" y="21" fill="#202124">{html.escape(source)}</text>',
    ]
    for number, line in enumerate(lines):
        text.append(f'  <text x="10" y="{52 + 20 * number}" xml:space="preserve">{html.escape(line)}</text>')
    if svg:
        placed = f'<svg x="10" y="{44 + 20 * len(lines)}" height="{inner_height}" '
        text.append(svg.strip().replace("<svg ", placed, 1))
    return "\n".join([*text, "</svg>\n"])


def main() -> None:
    sys.path.insert(0, str(PACKAGE.parent))
    wanted = {
        PACKAGE / "models.py": models(),
        PACKAGE / "remedies.json": remedies(),
        PROGRESS_PICTURE: progress_picture(),
        RESULT_PICTURE: result_picture(),
    }
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        if stale:
            names = ", ".join(str(path.relative_to(REPOSITORY)) for path in stale)
            raise SystemExit(f"generate: stale: {names}. Run `.ci/python generate`")
        return
    for path in stale:
        path.write_text(wanted[path])


if __name__ == "__main__":
    main()
