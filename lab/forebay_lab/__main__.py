"""`python -m forebay_lab`; people use `lab/lab`."""

from .cli import main

main()
