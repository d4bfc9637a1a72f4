"""A tenant's module that takes long to import."""

import time

time.sleep(600)
