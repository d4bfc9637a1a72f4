"""Writer of docs/reference/job.schema.json (``make job-schema``): the JSON Schema of a job file, for editors.

Run as ``python -m tools.job_schema``. With ``--check`` nothing is written, and the exit code is 1 if the file differs
from the code.
"""

import json
import sys
from pathlib import Path
from typing import Final

from muster.documents.job_file_schema import described_job_file_schema
from tools.generated_page import write_or_check

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "reference" / "job.schema.json"


def written() -> str:
    """Return the text of the file."""
    return json.dumps(described_job_file_schema(), indent=1, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    return write_or_check(PAGE, written(), arguments, source="the job's specification", command="make job-schema")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
