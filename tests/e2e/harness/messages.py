"""What `forebay` writes on stderr, as it is with FOREBAY_MESSAGES=json: one JSON object a line."""

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

# Where the ids that were really seen are noted (`file:line`, id), for calls that expect "?".
RECORD = os.environ.get("RECORD_MESSAGE_IDS")


@dataclass(frozen=True)
class Message:
    """An error, a warning, or a line of the daemon's log."""

    id: str
    what: str
    hint: str = ""
    severity: str = ""
    fields: dict[str, object] = field(default_factory=dict, compare=False)

    @property
    def text(self) -> str:
        """All words of it, for the values that a test asserts."""
        names = [str(self.fields.get(name, "")) for name in ("pool", "volume")]
        return "\n".join([self.what, self.hint, *names])


def parse(stderr: str) -> list[Message]:
    """The messages among the lines; a line that is none is a message without an id."""
    messages = []
    for line in stderr.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict) and "id" in value:
            messages.append(
                Message(value["id"], value.get("what", ""), value.get("hint", ""), value.get("severity", ""), value)
            )
        elif line.strip().startswith("hint: ") and messages:
            messages[-1] = replace(messages[-1], hint=line.strip().removeprefix("hint: "))
        elif line.strip():
            messages.append(Message("", line))
    return messages


def check(
    expected: str | tuple[str, ...], found: Iterable[Message], mentions: Iterable[object], context: str
) -> Message:
    """One of the messages has this id, or one of these, and mentions all the values; returns it."""
    found = list(found)
    accepted = (expected,) if isinstance(expected, str) else expected
    values = [str(value) for value in mentions]
    fitting = [message for message in found if expected == "?" or message.id in accepted]
    ids = [message.id for message in found]
    assert fitting, f"{context}: no message {expected}, only {ids}:\n{texts(found)}"
    complete = [message for message in fitting if all(value in message.text for value in values)]
    if complete:
        # Notes and progress come before the message that matters.
        errors = [message for message in complete if message.severity in ("error", "warning")]
        record(expected, (errors or complete)[-1])
        return (errors or complete)[-1]
    missing = [value for value in values if all(value not in message.text for message in fitting)]
    record(expected, Message("MISSING:" + ",".join(ids), str(missing or values)))
    raise AssertionError(f"{context}: {expected} does not mention {missing or values}:\n{texts(fitting)}")


def texts(messages: Iterable[Message]) -> str:
    return "\n".join(f"  [{message.id}] {message.text.strip()}" for message in messages)


def record(expected: str | tuple[str, ...], message: Message) -> None:
    if not RECORD or expected != "?":
        return
    frame = sys._getframe(1)
    while frame.f_back and not frame.f_code.co_name.startswith("test_"):
        frame = frame.f_back
    with Path(RECORD).open("a") as file:
        print(f"{frame.f_code.co_filename}:{frame.f_lineno}\t{message.id}\t{message.what[:120]!r}", file=file)
