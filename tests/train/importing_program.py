"""A program that is long at its start: in an import of Python's, in a wait inside torch, or in a child of its own."""

import argparse
import os
import signal
import sys
import time

from muster import train


def saves_first(*_: object) -> None:
    time.sleep(0.5)
    sys.exit(3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait", choices=["import", "torch", "child", "own"])
    wait = parser.parse_args().wait
    if wait == "own":
        signal.signal(signal.SIGTERM, saves_first)
    if wait == "child":
        child = os.fork()
        if child == 0:
            time.sleep(600)
        os.kill(child, signal.SIGTERM)
        print("child ended by", os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201
    print("importing", flush=True)  # noqa: T201
    if wait == "torch":
        train.mesh(data=-1)
    import tests.train.slow_to_import  # noqa: F401, PLC0415  # what takes long


if __name__ == "__main__":
    main()
