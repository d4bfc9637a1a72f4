"""Steps of a round trip in a process of their own, which an armed failpoint kills.

``upload URL TOKEN FOLDER`` is what a client does. ``set_aside STATE_DIR ATTEMPT`` is what a host's worker does at the
end of an attempt.
"""

import sys
from pathlib import Path
from typing import Final

from muster.client.rest import RestClient
from muster.client.uploads import Uploading
from muster.content.read import read_folder
from muster.failpoints import declare, failpoint, require_known
from workers.host.outputs.setting_aside import set_aside

WORDS: Final = "benchmarks.roundtrip_child"
IN_UPLOAD: Final = declare("upload.in_upload")


def main(words: list[str]) -> None:
    require_known()
    if words[0] == "set_aside":
        set_aside(Path(words[1]), words[2])
        return
    url, token, folder = words[1:]
    with RestClient(url, token) as client:
        Uploading(client, Path(folder), read_folder(Path(folder)), on_progress=_note).run()


def _note(done: int, _total: int) -> None:
    if done:
        failpoint(IN_UPLOAD)


if __name__ == "__main__":
    main(sys.argv[1:])
