"""`bench/compare`: Forebay and its peers, side by side in one run. See bench/README.md.

From the bottom up: `figures` (arithmetic), `cpu` (who used the processor), `model` (what is measured, and what was
found), `content` (data is really there), `servers` (Forebay and its peers), `stages` (what is prepared and measured, by
group), `runner` (in which order), `goals` (what ought to be reached), `report` and `plot` (how it looks), `cli`.
"""
