"""Block traces: replayed over NBD, and compared with other simulators.

From the bottom up: `records` (traces as files), `content` (what the client writes and checks), `client` and `daemon`
(the replay over NBD), `virtual` (the engine in virtual time), `policies` (libCacheSim), `table` (how it looks),
`arguments`.
"""
