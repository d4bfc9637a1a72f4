"""The work folder of a job: which one it is, its upload, and the program's paths in it."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import field_help
from muster.cli.framework.progress import progress
from muster.sizes import size_in_words

if TYPE_CHECKING:
    from muster import documents
    from muster.client.rest import RestClient
    from muster.content.read import Bundle

BundleFolder = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        help=field_help("Program.bundle", "Default: this folder, if the program is named by a path in it."),
    ),
]
NoBundle = Annotated[
    bool, typer.Option("--no-bundle", help="Upload nothing: the program is on the hosts at the same path.")
]
_NOT_FOUND: Final = 404
_UPLOAD_AGAIN: Final = frozenset({"unknown_bundle", "incomplete_bundle"})


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """A folder to upload. ``is_named``: by an option, so that a job without it is not what was asked for.

    ``start``: where relative words of the program start.
    """

    path: Path
    is_named: bool
    start: Path


def chosen_folder(
    bundle: Path | None,
    *,
    no_bundle: bool,
    words: Sequence[str],
    is_contained: bool,
    start: Path | None = None,
    script: str | None = None,
) -> WorkFolder | None:
    """Return the work folder that a submission has; None: its program is on the hosts.

    It is ``start`` if one of ``words`` is a relative path of a file in it; by default the present folder.
    ``script``: the program's own file, if it has one. Raises CommandError: both options, no such folder or script.
    """
    start = start or Path.cwd()
    if bundle is not None:
        if no_bundle:
            raise CommandError("--bundle and --no-bundle cannot be used together", "Leave out one.", Exit.USAGE)
        if not bundle.is_dir():
            raise CommandError(f"--bundle {bundle} is no folder", "Name the folder of the program.", Exit.USAGE)
        return WorkFolder(Path(os.path.abspath(bundle)), True, start)  # noqa: PTH100  # links stay as typed
    if no_bundle or is_contained:
        return None
    # os.path: a name that is too long, or has a zero byte, does not exist either.
    if script is not None and not os.path.isabs(script) and not os.path.exists(start / script):  # noqa: PTH110, PTH117
        advice = "Correct its name. Or give --no-bundle, if the hosts have it at this path."
        raise CommandError(f"there is no script {start / script} on this machine", advice, Exit.USAGE)
    if not any(_is_in(start, word) for word in words):
        return None
    return WorkFolder(start, is_named=False, start=start)


def _is_in(folder: Path, word: str) -> bool:
    """Return whether a word names a file in the folder by a relative path."""
    if not word or word.startswith(("/", "-")) or "\x00" in word:
        return False
    path = Path(os.path.normpath(word))
    return ".." not in path.parts and len(word) < 4096 and (folder / path).is_file()


@dataclass(frozen=True, slots=True)
class Bundled:
    """A work folder that was read, for the control plane of ``client``. ``environment``: lines about it."""

    client: "RestClient"
    folder: Path
    found: "Bundle"
    tenant_id: str | None
    environment: tuple[str, ...] = ()

    @classmethod
    def of(cls, client: "RestClient", folder: WorkFolder, spec: dict[str, Any]) -> "Bundled | None":
        """Read the folder, and put it into the job's program. None: the control plane has no content store."""
        tenant_id = spec.get("tenant_id")
        limits = limits_of(client, folder, tenant_id)
        if limits is None:
            return None
        found = read_bundle(folder.path, limits)
        if "program" in spec:
            spec["program"] = in_bundle(spec["program"], folder, found.digest)
            _require_program(spec["program"], folder.path, found)
        environment = _locked(spec.get("program", {}).get("environment"), folder.path, found, limits)
        return cls(client, folder.path, found, tenant_id, environment)

    def would_upload(self) -> str:
        return would_upload(self.client, self.found, self.tenant_id)

    def upload_if_missing(self) -> None:
        """Upload the folder, unless one short question says that the store has all of it."""
        from muster.client.transport import Problem

        try:
            known = self.client.bundle(self.found.digest, tenant_id=self.tenant_id)
        except Problem as problem:
            if problem.status != _NOT_FOUND:
                raise
        else:
            if known["state"] == "complete":
                return
        self.upload()

    def upload(self) -> None:
        upload(self.client, self.folder, self.found, self.tenant_id)


def limits_of(client: "RestClient", folder: WorkFolder, tenant_id: str | None) -> "documents.ContentLimits | None":
    """Return the limits of the control plane, or None if it has no content store and the folder was not named.

    Raises CommandError: it has none, and the folder was named; or the folder is the home folder.
    """
    from muster.client.transport import Problem
    from muster.store.faults import NOT_CONFIGURED

    limits = None
    try:
        limits = client.content_limits(tenant_id=tenant_id)
    except Problem as problem:
        if problem.status != _NOT_FOUND:
            raise
    if limits is None or not limits["has_store"]:
        if folder.is_named:
            raise CommandError(NOT_CONFIGURED, "Leave --bundle out: hosts then look for the program at its path.")
        return None
    if not folder.is_named and Path.home().resolve().is_relative_to(folder.path.resolve()):
        words = f"this folder is {folder.path}, and would be uploaded as the work folder"
        raise CommandError(words, "Go to the program's folder, name it by --bundle, or give --no-bundle.", Exit.USAGE)
    return limits


def read_bundle(folder: Path, limits: "documents.ContentLimits") -> "Bundle":
    """Read the folder; what did not change since the last time is not read. Raises CommandError, which names paths."""
    from muster.content.faults import FolderError
    from muster.content.read import read_folder
    from muster.content.scan import Limits

    done = 0
    with progress("work folder", has_lines=False) as bar:

        def on_read(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            bar.report(f"reading, {size_in_words(done)}")

        try:
            found = read_folder(
                folder,
                limits=Limits(max_bytes=limits["bundle_bytes"], max_files=limits["bundle_files"]),
                cache=cache_of(folder),
                on_read=on_read,
            )
        except FolderError as fault:
            raise _refused(folder, str(fault)) from fault
    for warning in found.scan.warnings():
        typer.echo(f"warning: {warning}", err=True)
    for path in found.scan.left_out:
        typer.echo(f"note: {path} is a virtual environment and is left out: it fits this machine alone", err=True)
    return found


def upload(client: "RestClient", folder: Path, found: "Bundle", tenant_id: str | None) -> None:
    """Upload what the store lacks, and say so. Raises CommandError: a file changed, or the store fails."""
    from muster.cli.framework.profile import find_profile
    from muster.client.uploads import Uploading
    from muster.content.faults import FolderError
    from muster.store.faults import StoreError

    uploaded = 0
    with progress("work folder", has_lines=False) as bar:

        def on_progress(done: int, total: int) -> None:
            nonlocal uploaded
            uploaded = total
            bar.report(f"uploading, {size_in_words(done)} of {size_in_words(total)}", done, total)

        uploading = Uploading(client, folder, found, tenant_id, find_profile().ca_file, on_progress)
        try:
            uploading.run()
        except FolderError as fault:
            raise _refused(folder, str(fault)) from fault
        except StoreError as fault:
            words = f"{fault.detail}. What was uploaded stays: the same command continues"
            raise CommandError(words, fault.suggestion, Exit.SERVER_FAULT) from fault
    if uploaded:
        typer.echo(f"{sizes_of(found)}: {size_in_words(uploaded)} uploaded", err=True)


def would_upload(client: "RestClient", found: "Bundle", tenant_id: str | None) -> str:
    """Return what an upload would send, without one."""
    from muster.content.manifest import encode

    tried = client.begin_bundle(encode(found.manifest), tenant_id=tenant_id, dry_run=True)
    if not tried["num_missing"]:
        return f"{sizes_of(found)}, which the store has"
    missing = size_in_words(tried["missing_bytes"])
    return f"{sizes_of(found)}, of which {missing} in {tried['num_missing']:,} chunks would be uploaded"


def sizes_of(found: "Bundle") -> str:
    """Return the folder's sizes as text."""
    num_files = found.scan.num_files
    files = "1 file" if num_files == 1 else f"{num_files:,} files"
    return f"bundle {found.digest[:12]} of {files}, {size_in_words(found.manifest.num_bytes)}"


def needs_upload(document: Mapping[str, Any] | None) -> bool:
    """Return whether a refusal says that the bundle is not there any more: it was just deleted."""
    return any(error.get("code") in _UPLOAD_AGAIN for error in (document or {}).get("errors", ()))


def in_bundle(program: Mapping[str, Any], folder: WorkFolder, digest: str) -> dict[str, Any]:
    """Return the program's fields with paths relative to the bundle. Raises CommandError: the script is not in it.

    Relative paths of a program that has a bundle already are paths in the folder that replaces it.
    """
    from muster.domain.job.bundle_spec import is_in_bundle

    start = folder.path if program.get("bundle") is not None else folder.start
    found = {**program, "bundle": digest}
    if program.get("script") is not None:
        found["script"] = _within(start / program["script"], folder.path, "the script")
    argv = list(program.get("argv") or ())
    if argv and is_in_bundle(argv[0]):
        inside = _within(start / argv[0], folder.path, "the command")
        found["argv"] = [inside if "/" in inside else f"./{inside}", *argv[1:]]
    if program.get("working_dir") is not None:
        found["working_dir"] = _working_dir(program["working_dir"], folder.path)
    environment = program.get("environment")
    if isinstance(environment, Mapping) and environment.get("lock"):
        lock = _within(start / environment["lock"], folder.path, "the lock file")
        found["environment"] = {**environment, "lock": lock}
    return found


def _locked(environment: Any, folder: Path, found: "Bundle", limits: "documents.ContentLimits") -> tuple[str, ...]:
    """Return the sizes of the environment, and why no host could build it.

    Raises CommandError: its lock file is not in the bundle, or is none.
    """
    from muster.cli.job.lock_options import environment_faults, locked_sizes
    from muster.domain.job.environment_spec import UV_LOCK

    if not isinstance(environment, Mapping) or not environment.get("lock"):
        return ()
    path = str(environment["lock"])
    _require_file(path, "the lock file", folder, found)
    if Path(path).name == UV_LOCK:
        _require_file((Path(path).parent / "pyproject.toml").as_posix(), "the project of the lock", folder, found)
    faults = environment_faults(limits, allows_source=bool(environment.get("allows_source")))
    return (locked_sizes(folder / path, path, environment.get("from_host") or []), *faults)


def _require_program(program: Mapping[str, Any], folder: Path, found: "Bundle") -> None:
    """Require that the bundle has the program's file. Raises CommandError, which says why it was left out."""
    from muster.domain.job.bundle_spec import is_in_bundle

    argv = program.get("argv") or [""]
    path = program.get("script") or (argv[0].removeprefix("./") if is_in_bundle(argv[0]) else None)
    if path is not None:
        _require_file(path, "the program", folder, found)


def _require_file(path: str, what: str, folder: Path, found: "Bundle") -> None:
    """Require that the bundle has a file. Raises CommandError, which says why it was left out."""
    from muster.content.manifest import Kind
    from muster.content.scan import why_left_out

    # A folder of the path may be a link, which is taken in place of what is in it.
    real = Path(os.path.realpath((folder / path).parent)) / Path(path).name
    places = {path, os.path.relpath(real, os.path.realpath(folder))}
    if any(entry.path in places and entry.kind is not Kind.FOLDER for entry in found.manifest.entries):
        return
    left_out = why_left_out(folder, path)
    if left_out is None:
        words = f"the work folder {folder} has no file {path}, which is {what}"
        raise CommandError(words, f"Name {what} by its own path.", Exit.USAGE)
    advice = "Move it elsewhere."
    if left_out.file is not None:
        advice = f"Add `{left_out.pattern}` to the end of {left_out.file}, or move it."
    raise CommandError(f"the work folder goes without {what} {path}: {left_out.why}", advice, Exit.USAGE)


def _within(path: Path, folder: Path, what: str) -> str:
    absolute = Path(os.path.abspath(path))  # noqa: PTH100  # links stay as they are typed
    for base in (folder, folder.resolve()):
        if absolute.is_relative_to(base):
            return absolute.relative_to(base).as_posix()
    words = f"{what} {path} is not in the work folder {folder}"
    raise CommandError(words, "Name the folder that has it by --bundle, or give --no-bundle.", Exit.USAGE)


def _working_dir(path: str, folder: Path) -> str | None:
    """Return the folder in the bundle; None: the bundle itself. One outside of it is the hosts' own."""
    for base in (folder, folder.resolve()):
        if Path(path).is_relative_to(base):
            inside = Path(path).relative_to(base).as_posix()
            return None if inside == "." else inside
    return path


def cache_of(folder: Path) -> Path:
    """Return where the digests of a folder's files are kept from one submission to the next."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    return Path(base) / "muster" / "folders" / f"{name}.json"


def _refused(folder: Path, why: str) -> CommandError:
    advice = "Or give --no-bundle, if hosts have the program at the same path."
    return CommandError(f"the work folder {folder}: {why}", advice, Exit.INVALID)
