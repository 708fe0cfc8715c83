"""Helpers of the end-to-end tests: the real binary, real clients, real devices.

Tests get them as fixtures (conftest.py). Rules that all of it keeps:

- A process is ended by its number, and dies with the test that started it.
- A wait has a condition and a limit; there is no sleep that hopes.
- A refusal is asserted by the id of its message (docs/use/messages.md) and by the values in it, never by its words.
"""
