"""A bank whose clients know what they were promised: the workload of the experiment that kills caches.

Each client moves money between two accounts, step by step. A step is one transaction: both accounts change, their
counts of changes grow, and a line in `done` says that the client made the step. A client goes on when the server has
said that the step is committed, so at any time it knows how many of its steps must be there, and that at most one more
may be.

What must hold after any crash (`check`):
- of each client, all steps up to the last that was acknowledged are there, none is missing between, and at most the one
  that was under way is there beyond;
- no money has come or gone, and the accounts have changed exactly twice for each step: no transaction is there by half;
- each line holds, byte by byte, what was written to it.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Sequence

from .experiment import Lies, Refused
from .ledger import Ledger
from .mariadb import DATABASE, Database

TABLES = ("account", "done")
MONEY = 1000
# What a line of `done` holds: so many characters of a hash again and again, so that lines differ in length and content.
NOTE = "repeat(md5(concat({client}, '-', {step})), 1 + {step} % 64)"
PAD = "repeat(md5({id}), 6)"
PATIENCE_S = 120.0


def fill(database: Database, accounts: int) -> None:
    """Makes the tables; `seq_1_to_N` is a table of numbers that MariaDB makes up."""
    database.ask(
        f"create database {DATABASE} character set utf8mb4; use {DATABASE};"
        "create table account (id int primary key, money bigint not null, changes bigint not null, pad char(200));"
        "create table done (client int, step bigint, note text, primary key (client, step));"
        f"insert into account select seq, {MONEY}, 0, {PAD.format(id='seq')} from seq_1_to_{accounts}"
    )


class Client:
    """Makes steps until its server is gone."""

    def __init__(self, number: int, step: int, accounts: int, database: Database, ledger: Ledger, seed: str) -> None:
        self.number = number
        self.acknowledged = self.begun = step
        """The last step that was acknowledged, and the last that was sent."""
        self.said = ""
        """What the server said instead of an acknowledgement."""
        self.accounts = accounts
        self.dice = random.Random(seed)
        self.child = subprocess.Popen(
            [*database.client, "--unbuffered", DATABASE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.ledger = ledger
        self.entry = ledger.add_process(self.child.pid)
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _statements(self) -> str:
        one, other = sorted(self.dice.sample(range(1, self.accounts + 1), 2))
        amount, step = self.dice.randint(-9, 9), self.begun
        return (
            "begin;"
            f"update account set money = money - {amount}, changes = changes + 1 where id = {one};"
            f"update account set money = money + {amount}, changes = changes + 1 where id = {other};"
            f"insert into done values ({self.number}, {step}, {NOTE.format(client=self.number, step=step)});"
            f"commit; select {step};\n"
        )

    def _work(self) -> None:
        assert self.child.stdin is not None and self.child.stdout is not None
        try:
            while True:
                self.begun = self.acknowledged + 1
                self.child.stdin.write(self._statements())
                self.child.stdin.flush()
                answer = self.child.stdout.readline().strip()
                if answer != str(self.begun):
                    self.said = answer
                    return
                self.acknowledged = self.begun
        except OSError as error:  # The pipe is gone with the client, and that with its server.
            self.said = str(error)

    def end(self) -> None:
        """Waits for the end that comes when the server is gone."""
        self.thread.join(PATIENCE_S)
        if self.thread.is_alive():
            raise Refused(f"client {self.number} still waits for a server that is gone")
        self.child.kill()
        self.child.communicate()
        self.ledger.undo(self.entry)


def work(clients: Sequence[Client], seconds: float) -> None:
    """Lets all clients make steps, each at least one, and then for a while. Raises `Refused` if one cannot."""
    before = [client.acknowledged for client in clients]
    deadline = time.monotonic() + PATIENCE_S
    while any(client.acknowledged == step for client, step in zip(clients, before, strict=True)):
        complain(clients)
        if time.monotonic() > deadline:
            raise Refused(f"a client made no step within {PATIENCE_S:.0f} s")
        time.sleep(0.01)
    time.sleep(seconds)
    complain(clients)


def complain(clients: Sequence[Client]) -> None:
    """Raises `Refused` if a client has given up: its server still runs."""
    for client in clients:
        if not client.thread.is_alive():
            raise Refused(f"client {client.number} was told: {client.said}")


def check(database: Database, accounts: int, clients: Sequence[Client]) -> dict[int, int]:
    """The steps that are there by client. Raises `Lies` if something that must hold does not."""
    lines = database.ask(f"select client, max(step), count(*) from {DATABASE}.done group by client")
    found = {int(client): (int(last), int(count)) for client, last, count in lines}
    wrong = []
    for client in clients:
        last, count = found.get(client.number, (0, 0))
        if last != count:
            wrong.append(f"of client {client.number}'s {last} steps {last - count} are missing")
        if last < client.acknowledged:
            wrong.append(f"client {client.number} made {client.acknowledged} steps, {last} are there")
        if last > client.begun:
            wrong.append(f"client {client.number} began {client.begun} steps, {last} are there")
    sums = "coalesce(sum(money), 0), coalesce(sum(changes), 0), count(*)"
    (money, changes, there), *_ = database.ask(f"select {sums} from {DATABASE}.account")
    steps = sum(count for _, count in found.values())
    if (int(money), int(changes), int(there)) != (MONEY * accounts, 2 * steps, accounts):
        wrong.append(f"{there} accounts with {money} changed {changes} times after {steps} steps")
    note = NOTE.format(client="client", step="step")
    # By byte, and also where nothing is: comparisons of text take some different texts for the same.
    for table, column, wanted in (("done", "note", note), ("account", "pad", PAD.format(id="id"))):
        differs = f"not (binary {column} <=> binary {wanted})"
        others = int(database.ask(f"select count(*) from {DATABASE}.{table} where {differs}")[0][0])
        if others:
            wrong.append(f"{others} lines of {table} hold something else")
    if wrong:
        raise Lies("; ".join(wrong))
    return {client: last for client, (last, _) in found.items()}
