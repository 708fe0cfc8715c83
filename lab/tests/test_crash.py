"""The experiment that kills caches: it finds a cache that forgets, and each kind of damage by itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from forebay_lab import bank, binaries, crash, mariadb
from forebay_lab.database import Content, image_of
from forebay_lab.experiment import Binary, Lies, Row, Scale, Work
from forebay_lab.ledger import Ledger
from forebay_lab.mariadb import Database, Options
from forebay_lab.stack import Backend, Store, mounted

ACCOUNTS = 100
OPTIONS = Options(16, 16)

needs_database = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mariadbd"), reason="needs root and MariaDB")


def content(accounts: int) -> Content:
    """A bank that has just opened."""
    return Content("bank", 384, "xfs", lambda there: bank.fill(there, accounts))


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, bank.Client]]:
    """A bank that was open for a moment, on no cache, and its client."""
    folder = tmp_path_factory.mktemp("bank")
    with Ledger(folder / "ledger") as ledger, ExitStack() as stack:
        work = Work(folder, folder, ledger, lambda _: None)
        image = image_of(content(ACCOUNTS), OPTIONS, work)
        there = stack.enter_context(mounted(Backend(Store.RAW), image, work))
        database = stack.enter_context(mariadb.running(there.path / "data", OPTIONS, work))
        client = bank.Client(0, 0, ACCOUNTS, database, ledger, "seed")
        bank.work([client], 0.1)
        client.child.kill()
        client.end()
        yield database, client


@needs_database
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("delete from lab.done where step = 1", "are missing"),
        ("delete from lab.done order by step desc limit 2", "steps, "),
        ("insert into lab.done select 0, max(step) + 1, '' from lab.done", "lines of done hold"),
        ("insert into lab.done select 0, max(step) + 2, '' from lab.done", "began"),
        ("update lab.account set money = money + 1 where id = 7", "accounts with"),
        ("update lab.account set changes = changes + 1 where id = 7", "accounts with"),
        ("update lab.done set note = 'other' where step = 1", "1 lines of done hold"),
        ("update lab.done set note = null where step = 1", "1 lines of done hold"),
        ("update lab.done set note = upper(note) where step = 1", "1 lines of done hold"),
        ("update lab.account set pad = upper(pad) where id = 7", "1 lines of account hold"),
        ("delete from lab.account", "0 accounts with"),
    ],
)
def test_each_kind_of_damage_is_found(worked: tuple[Database, bank.Client], damage: str, told: str) -> None:
    database, client = worked
    assert bank.check(database, ACCOUNTS, [client])[0] in (client.acknowledged, client.begun)
    database.ask("create database kept; use kept; create table account select * from lab.account")
    database.ask("use kept; create table done select * from lab.done")
    try:
        database.ask(damage)
        with pytest.raises(Lies, match=told):
            bank.check(database, ACCOUNTS, [client])
    finally:
        for table in bank.TABLES:
            database.ask(f"delete from lab.{table}; insert into lab.{table} select * from kept.{table}")
        database.ask("drop database kept")


@needs_database
@pytest.mark.skipif(not binaries.path(Binary.MODEL).exists(), reason="the FlashCache model is not built")
def test_a_cache_that_forgets_is_found(tmp_path: Path) -> None:
    """The model of FlashCache has no recovery: what only its cache had is gone after a kill."""
    length = crash.LENGTHS[Scale.SMOKE]
    backend = Backend(Store.FLASHCACHE, ("--dirty-thresh-pct", "90"), length.cache_mib)
    with Ledger(tmp_path / "ledger") as ledger:
        work = Work(tmp_path, tmp_path, ledger, lambda _: None)
        image = image_of(content(length.accounts), OPTIONS, work)
        bout = crash.Bout(backend, image, OPTIONS, length, work)
        row = Row("forgets", 0, {"scale": Scale.SMOKE.value})
        with pytest.raises(Lies, match=r"after \d kills|steps|accounts|lines"):
            crash.kill_again_and_again(bout, row)
