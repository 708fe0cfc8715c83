"""The lab: published flash-cache experiments, repeated on this machine with Forebay beside its peers.

- `experiment` says what an experiment is, `cli` lists them; each one is a module of its own.
- `runner` takes the rows of one in turn, marks what others disturbed and measures it again, and can go on where it
  ended.
- `store` keeps what was measured, with everything that is needed to judge it; `report` draws it.
- `ledger` writes down whatever has to be undone *before* it is done, so that `lab clean` can undo it after a `kill -9`.

How to start servers and who used the processor is shared with the benchmarks: `bench/harness.py`,
`bench/comparison/cpu.py`.
"""
