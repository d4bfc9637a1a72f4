"""docs/reference/job.schema.json says what the code says of a job file."""

from tools.job_schema import PAGE, main, written


def test_the_committed_file_is_what_the_code_states() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(), "run `make job-schema`"
    assert main(["--check"]) == 0
