"""A content store that only signs: no address of it is ever requested."""

from pathlib import Path

from muster.store.key_file import KeyFile
from muster.store.objects import ObjectStore


def signing_store(folder: Path) -> ObjectStore:
    key_file = folder / "store.keys"
    key_file.write_text("tester secret-of-the-store\n")
    key_file.chmod(0o600)
    return ObjectStore(
        "http://127.0.0.1:9", "content", KeyFile(key_file), region="us-east-1", gateway_url="http://127.0.0.1:9"
    )
