"""The name of the launcher's mark of progress in the state folder: the launcher marks it, a health check reads it."""

from typing import Final

PROGRESS_FILE: Final = "launcher.progress"
