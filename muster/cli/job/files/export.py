"""``muster job export`` writes a job as a file, and ``muster job schema`` the form of one."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError

from muster.cli.framework.names import JobId
from muster.cli.framework.output import json_of, print_line
from muster.cli.framework.profile import find_profile, open_client
from muster.domain.job.file_schema import PATH, job_file_schema
from muster.domain.job.spec import JobSpec

_OPEN: Final = re.compile(r"\$+\{")


def export(
    job_id: JobId,
    *,
    is_whole: Annotated[bool, typer.Option("--whole", help="Every field, also those with their defaults.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Write a job as a file: `muster job submit -f` makes an equal one of it. It names no tenant."""
    with open_client() as client:
        job = client.job(job_id)
    document = file_document(job["spec"], is_whole=is_whole)
    if as_json:
        print_line(json_of(document, indent=2))
        return
    print_line(f"# yaml-language-server: $schema={find_profile().api_url}{PATH}")
    print_line(f"# {job['id']}, as it was submitted at {job['created_at']}")
    print_line(yaml_text(document))


def schema() -> None:
    """Print the JSON Schema of a job file, for editors; the API serves it at /v1/schemas/job.json."""
    print_line(json.dumps(job_file_schema(), indent=1))


def file_document(spec: Mapping[str, Any], *, is_whole: bool = False) -> dict[str, Any]:
    """Return the document of a file for the specification, as a server answers it.

    A field with its default is left out, except for size and tier. If the specification has a field that this release
    does not know, every field is kept.
    """
    try:
        known = JobSpec.model_validate_json(json.dumps(spec))
    except ValidationError:
        return dict(_escaped(spec))
    changed = dict(spec) if is_whole else known.model_dump(mode="json", exclude_defaults=True)
    shape = {"nodes": known.shape.nodes, "gpus_per_node": known.shape.gpus_per_node, **changed.get("shape", {})}
    shown = {"name": known.name, "tier": known.tier, "shape": shape}
    return dict(_escaped({**shown, **changed, "shape": shape}))


def yaml_text(document: Mapping[str, Any]) -> str:
    """Return the document as YAML, every text of which reads as itself."""
    import yaml

    from muster.cli.framework.yaml_loading import TEXT_TAG

    class Dumper(yaml.SafeDumper):
        def represent_str(self, text: str) -> Any:
            """Write a text with anything but printable ASCII in double quotes, whose escapes read as they were."""
            is_plain = text.isascii() and text.isprintable()
            return self.represent_scalar(TEXT_TAG, text, style=None if is_plain else '"')

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # the base's signature
            return True

    Dumper.add_representer(str, Dumper.represent_str)
    text = yaml.dump(dict(document), Dumper=Dumper, sort_keys=False, allow_unicode=False, width=1 << 30)
    return str(text).rstrip("\n")


def _escaped(value: Any) -> Any:
    """Return the value with ``${`` in its texts written so that it is no variable."""
    if isinstance(value, str):
        return _OPEN.sub(lambda found: "$" + found[0], value)
    if isinstance(value, Mapping):
        return {name: _escaped(each) for name, each in value.items()}
    return [_escaped(each) for each in value] if isinstance(value, list | tuple) else value
