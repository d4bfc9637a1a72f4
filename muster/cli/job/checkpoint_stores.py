"""``muster ckpt get`` of a checkpoint in an object store of the job's own: the control plane has no key of that, so the
caller's signs the addresses, which boto3 finds as it does in a job.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from muster import documents
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.installed import Part, has

_MANIFEST: Final = "MANIFEST.json"
_ADDRESS_S: Final = 3600
_VARIABLES: Final = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and, if it is not Amazon's, AWS_ENDPOINT_URL"
Signing = Callable[[Sequence[str]], documents.CheckpointDownloads]


def own_signing(prefix: str, generation: str) -> Signing:
    """Return what signs addresses of a checkpoint's files. ``prefix``: ``s3://…`` of the generation.

    Raises CommandError, which says what else to do: no boto3 is installed here, or the store refuses.
    """
    otherwise = f"Or copy it: `aws s3 cp --recursive {prefix} DIR/{generation}`, then `muster ckpt verify DIR`."
    words = f"the checkpoint is {prefix}, of which Muster has no key"
    if not has(Part.TRAIN):
        advice = f"Install muster-train[s3] next to muster-client, so that your own credentials are used. {otherwise}"
        raise CommandError(words, advice, Exit.CONFLICT)
    from muster.train.checkpoint.manifest import UnusableError, parse
    from muster.train.checkpoint.storage.bucket import Bucket, MissingExtraError
    from muster.train.checkpoint.storage.places import S3Place

    try:
        bucket = Bucket(S3Place.of(prefix))
        content = bucket.get(_MANIFEST)
        parse(content)
    except MissingExtraError as fault:
        advice = f"Install boto3 in muster's environment: pip install 'boto3>=1.40,<2'. {otherwise}"
        raise CommandError(f"{words}, and boto3 is not installed here", advice, Exit.CONFLICT) from fault
    except FileNotFoundError as fault:
        advice = "Fetch another step, or compare AWS_ENDPOINT_URL with that of the job's `env`."
        raise CommandError(f"{prefix} has no checkpoint", advice, Exit.NOT_FOUND) from fault
    except UnusableError as fault:
        raise CommandError(f"{prefix}: {fault}", "Fetch another step.", Exit.FAILED) from fault
    except OSError as fault:
        reason = fault.strerror or fault
        advice = f"Name your own credentials by {_VARIABLES}, as your job has them. {otherwise}"
        raise CommandError(f"{words}, and yours do not open it: {reason}", advice, Exit.CONFLICT) from fault
    digest = hashlib.sha256(content).hexdigest()

    def signed(names: Sequence[str]) -> documents.CheckpointDownloads:
        files = [documents.SignedDownload(url=bucket.signed(one, _ADDRESS_S), headers={}) for one in names]
        return {"generation": generation, "sha256": digest, "files": files}

    return signed
