"""Block traces: replayed over NBD, compared with other simulators, and the frontier of misses against bytes written.

From the bottom up: `records` (traces as files), `content` (what the client writes and checks), `client` and `daemon`
(the replay over NBD), `virtual` (the engine in virtual time), `policies` and `libcachesim_run` (libCacheSim), `table`
(how it looks), `frontier` and `plot` (for `bench/frontier`), `arguments`.
"""
