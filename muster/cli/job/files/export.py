"""``muster job export`` writes a job as a file, and ``muster job schema`` the form of one."""

import json
from typing import Annotated

import typer

from muster.cli.framework.names import JobId
from muster.cli.framework.output import json_of, print_line
from muster.cli.framework.profile import find_profile, open_client
from muster.domain.job.file_schema import PATH


def export(
    job_id: JobId,
    *,
    is_whole: Annotated[bool, typer.Option("--whole", help="Every field, also those with their defaults.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Write a job as a file: `muster job submit -f` makes an equal one of it. It names no tenant."""
    from muster.documents.job_files import file_document, yaml_text

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
    from muster.documents.job_file_schema import described_job_file_schema

    print_line(json.dumps(described_job_file_schema(), indent=1))
