"""The work folders of job files and copies, and the folders and programs that are refused; by real processes."""

import json
from pathlib import Path

import pytest

from muster.cli.framework.exits import Exit
from muster.content.manifest import decode
from tests.cli.command import Command
from tests.cli.job.served_folders import Served, newest, submit

pytestmark = pytest.mark.timeout(400)


def written(folder: Path, **program: object) -> Path:
    path = folder / "job.yaml"
    path.write_text(json.dumps({"name": "train", "program": program}))
    return path


def paths_of(served: Served, digest: str) -> list[str]:
    manifest = decode(served.bucket.objects[f"tenants/{served.fleet.tenant_id}/manifests/{digest}"])
    return [entry.path for entry in manifest.entries]


def newest_id(served: Served) -> str:
    with served.client() as client:
        return str(next(iter(client.jobs(limit=1)))["id"])


def again(muster: Command, served: Served, *words: str) -> dict[str, object]:
    """Copy the newest job, and return the program of the copy."""
    done = muster.run("job", "copy", newest_id(served), *words, url=served.url, HOME=str(muster.folder.parent))
    assert done.returncode == Exit.OK, done.stderr
    return newest(served)


def test_a_job_file_brings_its_own_folder(muster: Command, served: Served) -> None:
    (muster.folder / "package" / "run.sh").write_text("python model.py")
    file = written(muster.folder / "package", script="model.py", args=["--steps", "2"])
    done = submit(muster, served, "-f", str(file.relative_to(muster.folder)))
    assert done.returncode == Exit.OK, done.stderr
    program = newest(served)
    assert (program["script"], program["working_dir"], program["args"]) == ("model.py", None, ["--steps", "2"])
    assert paths_of(served, program["bundle"]) == ["job.yaml", "model.py", "run.sh"]
    for argv in (["sh", "run.sh"], ["./run.sh"]):
        written(muster.folder / "package", launcher="command", argv=argv)
        assert submit(muster, served, "-f", "package/job.yaml").returncode == Exit.OK
        assert newest(served)["argv"] == argv
        assert paths_of(served, newest(served)["bundle"]) == ["job.yaml", "model.py", "run.sh"]


def test_which_folder_a_job_file_brings(muster: Command, served: Served) -> None:
    script = muster.folder / "package" / "model.py"
    written(muster.folder, script="package/model.py", working_dir="package")
    assert submit(muster, served, "-f", "job.yaml", "--bundle", "package").returncode == Exit.OK
    assert (newest(served)["script"], newest(served)["working_dir"]) == ("model.py", None)
    assert paths_of(served, newest(served)["bundle"]) == ["model.py"]
    assert submit(muster, served, "-f", "job.yaml", "--no-bundle").returncode == Exit.OK
    assert newest(served).get("bundle") is None
    assert (newest(served)["script"], newest(served)["working_dir"]) == (str(script), str(script.parent))
    assert submit(muster, served, "-f", "job.yaml", "--set", "program.script=/opt/train.py").returncode == Exit.OK
    assert (newest(served)["script"], newest(served).get("bundle")) == ("/opt/train.py", None)
    written(muster.folder / "package", script="model.py")
    assert submit(muster, served, "-f", "package/job.yaml", "--", "train.py").returncode == Exit.OK
    assert newest(served)["script"] == "train.py"
    assert "package/model.py" in paths_of(served, newest(served)["bundle"]), "words name the present folder"


def test_a_job_with_a_bundle_is_exported_and_submitted_as_an_equal_one(muster: Command, served: Served) -> None:
    for words in (["package/model.py"], ["--workdir", "package", "train.py"], ["--command", "--", "sh", "train.py"]):
        assert submit(muster, served, *words).returncode == Exit.OK
        program = newest(served)
        exported = muster.run("job", "export", newest_id(served), url=served.url)
        (muster.folder.parent / "again.yaml").write_text(exported.stdout)
        done = submit(muster, served, "-f", "../again.yaml")
        assert (done.returncode, done.stderr) == (Exit.OK, ""), done.stderr
        assert newest(served) == program


def test_a_copy_takes_the_folder_that_options_and_words_name(muster: Command, served: Served) -> None:
    assert submit(muster, served, "train.py").returncode == Exit.OK
    first = newest(served)
    assert again(muster, served) == first
    (muster.folder / "train.py").write_text("print('changed')")
    assert again(muster, served) == first, "without words it is the same job"
    words = again(muster, served, "--", "package/model.py")
    assert words["script"] == "package/model.py"
    assert words["bundle"] not in {first["bundle"], None}
    bundle = again(muster, served, "--bundle", ".", "--set", "program.script=train.py")
    assert (bundle["script"], bundle["bundle"]) == ("train.py", words["bundle"])
    (muster.folder / "package" / "model.py").rename(muster.folder / "model.py")
    (muster.folder / "package").rmdir()
    kept = again(muster, served, "--", "package/model.py", "--fast")
    assert (kept["script"], kept["args"], kept["bundle"]) == ("package/model.py", ["--fast"], words["bundle"])
    none = again(muster, served, "--no-bundle", "--", "train.py")
    assert (none["script"], none.get("bundle")) == (str(muster.folder / "train.py"), None)


def test_a_copy_without_its_bundle_needs_a_program_of_the_hosts(muster: Command, served: Served) -> None:
    assert submit(muster, served, "--workdir", "package", "train.py").returncode == Exit.OK
    job_id = newest_id(served)
    for words, expected in (
        ([], "the script train.py is a path in the job's bundle"),
        (["--", "train.py"], "the working directory package is a path in the job's bundle"),
    ):
        refused = muster.run("job", "copy", job_id, "--no-bundle", *words, url=served.url)
        assert refused.returncode == Exit.USAGE
        assert expected in " ".join(refused.stderr.split())
    assert newest_id(served) == job_id


def test_home_and_the_folders_above_it_are_no_work_folder_unless_named(muster: Command, served: Served) -> None:
    link = muster.folder.parent / f"{muster.folder.name}-link"
    link.symlink_to(muster.folder)
    for home in (muster.folder, link, muster.folder / "package"):
        refused = muster.run("job", "submit", "train.py", url=served.url, HOME=str(home))
        assert refused.returncode == Exit.USAGE, home
        assert "would be uploaded as the work folder" in " ".join(refused.stderr.split())
    done = muster.run("job", "submit", "--bundle", ".", "train.py", url=served.url, HOME=str(muster.folder))
    assert done.returncode == Exit.OK, done.stderr


@pytest.mark.parametrize(
    ("rule_file", "rule", "words", "expected"),
    [
        (".gitignore", "train.*", ["train.py"], (".musterignore", "!/train.py")),
        (".musterignore", "package/", ["package/model.py"], (".musterignore", "!/package/")),
        ("package/.gitignore", "*.py", ["--command", "--", "./package/model.py"],
         ("package/.musterignore", "!/model.py")),
    ],
)  # fmt: skip
def test_a_program_that_rules_leave_out_is_named_before_an_upload(
    muster: Command, served: Served, rule_file: str, rule: str, words: list[str], expected: tuple[str, str]
) -> None:
    path = muster.folder / rule_file
    before = path.read_text() if path.exists() else ""
    path.write_text(f"{before}{rule}\n")
    refused = submit(muster, served, *words)
    said = " ".join(refused.stderr.split())
    assert refused.returncode == Exit.USAGE, said
    assert f"{rule_file} leaves out" in said
    file, pattern = expected
    assert f"Add `{pattern}` to the end of {file}" in said
    assert served.bucket.num_puts == 0
    with (muster.folder / file).open("a") as rules:
        rules.write(f"{pattern}\n")
    assert submit(muster, served, *words).returncode == Exit.OK, "the advice helps"


def test_a_program_behind_a_link_or_in_an_environment(muster: Command, served: Served) -> None:
    (muster.folder / "code").symlink_to("package")
    assert submit(muster, served, "--command", "--", "./code/model.py").returncode == Exit.OK
    assert newest(served)["argv"] == ["code/model.py"]
    (muster.folder / "package" / "pyvenv.cfg").touch()
    refused = submit(muster, served, "package/model.py")
    assert refused.returncode == Exit.USAGE
    assert "package/ is a virtual environment" in " ".join(refused.stderr.split())
    missing = submit(muster, served, "--bundle", ".", "--command", "--", "./missing.sh")
    assert missing.returncode == Exit.USAGE
    assert "has no file missing.sh" in " ".join(missing.stderr.split())
