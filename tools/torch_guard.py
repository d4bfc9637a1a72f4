"""Check of what `pip install torch` would bring, before anything is downloaded.

The same requirement, `torch==2.13.0`, is a 200 MB CPU build for one pip configuration and gigabytes of CUDA libraries
for another. Only pip's own plan shows which, so the plan is read first.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CUDA_NAME_STARTS = ("nvidia", "cuda", "triton", "pytorch-triton")
SIZE_TIMEOUT_S = 10.0

SizeOf = Callable[[str], "int | None"]


@dataclass(frozen=True)
class Download:
    name: str
    version: str
    url: str


@dataclass(frozen=True)
class TorchPlan:
    """Plan of one `pip install --dry-run --report`."""

    downloads: tuple[Download, ...]

    @property
    def cuda_names(self) -> tuple[str, ...]:
        return tuple(sorted(one.name for one in self.downloads if one.name.lower().startswith(CUDA_NAME_STARTS)))

    @property
    def is_cuda(self) -> bool:
        return bool(self.cuda_names)

    def urls(self) -> tuple[str, ...]:
        return tuple(one.url for one in self.downloads)


def read_plan(report: Mapping[str, Any]) -> TorchPlan:
    """Return the plan in pip's installation report (format version 1)."""
    return TorchPlan(
        tuple(
            Download(
                name=item["metadata"]["name"],
                version=item["metadata"]["version"],
                url=item["download_info"]["url"],
            )
            for item in report["install"]
        )
    )


def size_of_download(url: str) -> int | None:
    """Return the bytes behind the address; None if it is unknown. pip's report has no sizes, so the server
    is queried.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        path = Path(urllib.parse.unquote(parts.path))
        return path.stat().st_size if path.exists() else None
    if parts.scheme not in {"http", "https"}:
        return None
    request = urllib.request.Request(url, method="HEAD")  # noqa: S310  # the scheme is checked above
    try:
        with urllib.request.urlopen(  # noqa: S310
            request, timeout=SIZE_TIMEOUT_S, context=ssl.create_default_context()
        ) as answer:
            length = answer.headers.get("Content-Length")
    except (OSError, urllib.error.URLError):
        return None
    return int(length) if length else None


def total_size(urls: Iterable[str], size_of: SizeOf = size_of_download) -> tuple[int, int]:
    """Return (bytes known, number of addresses with an unknown size)."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        sizes = list(pool.map(size_of, urls))
    known = [size for size in sizes if size is not None]
    return sum(known), len(sizes) - len(known)


def refusal(plan: TorchPlan, size_of: SizeOf = size_of_download) -> str:
    """Return the message that asks the user to choose, with the size of the download."""
    known_bytes, num_unknown = total_size(plan.urls(), size_of)
    gigabytes = f"{known_bytes / 1e9:.1f} GB"
    if num_unknown == len(plan.downloads):
        size = "a download of unknown size"
    elif num_unknown:
        size = f"a download of at least {gigabytes} ({num_unknown} of {len(plan.downloads)} packages do not say)"
    else:
        size = f"a download of {gigabytes}"
    return (
        f"torch was not installed: pip would fetch the CUDA build, {len(plan.downloads)} packages "
        f"({len(plan.cuda_names)} of them {', '.join(plan.cuda_names[:3])}, ...), {size}. "
        "Run `TORCH=cuda make setup` to install it all the same, or `TORCH=skip make setup` to do without; "
        "only training workloads need torch."
    )
