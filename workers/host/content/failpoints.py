"""Places where a test or a drill can kill a process that makes an attempt's content.

They stand together, since such a process imports the code of environments with its first one.
"""

from typing import Final

from muster.failpoints import declare, failpoint

__all__ = [
    "AFTER_ASSEMBLY",
    "AFTER_BUILD",
    "AFTER_CHUNK",
    "AFTER_CLAIM",
    "AFTER_MANIFEST",
    "AFTER_PUBLISH",
    "AFTER_UPLOAD",
    "BEFORE_PUBLISH",
    "IN_BUILD",
    "IN_WORK_FOLDER",
    "failpoint",
]

AFTER_MANIFEST: Final = declare("fetch.after_manifest")
AFTER_CHUNK: Final = declare("fetch.after_chunk")
BEFORE_PUBLISH: Final = declare("fetch.before_publish")
AFTER_PUBLISH: Final = declare("fetch.after_publish")
"""The copy has its name, and no record that it is whole."""
IN_WORK_FOLDER: Final = declare("fetch.in_work_folder")
AFTER_CLAIM: Final = declare("build.after_claim")
IN_BUILD: Final = declare("build.in_build")
AFTER_BUILD: Final = declare("build.after_build")
AFTER_UPLOAD: Final = declare("build.after_upload")
AFTER_ASSEMBLY: Final = declare("build.after_assembly")
"""The environment is there, and no record that it is whole."""
