"""`python -m rackforge_runtime`: the same as `rackforge`."""

from rackforge_runtime.cli import main

main()
