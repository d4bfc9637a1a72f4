"""``python -m muster`` is the ``muster`` command."""

from muster.cli import main

if __name__ == "__main__":
    main()
