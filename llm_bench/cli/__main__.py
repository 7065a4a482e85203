"""``helene llm`` where the package is not installed: ``python -m llm_bench.cli ACTION ...``."""

import argparse
import sys

from llm_bench.cli import add_commands

parser = argparse.ArgumentParser(prog="python -m llm_bench.cli")
add_commands(parser.add_subparsers(required=True))
arguments = parser.parse_args(["llm", *sys.argv[1:]])
sys.exit(arguments.func(arguments))
