"""A database on each back end, with the same content at the beginning, and looked at after the end.

The content is made once, on the flash, and copied for each row. After a row every table has a checksum, read through
what was measured. Then that is taken away, and the database is started on the image alone, on the flash: every table
must have the same checksum. A cache that is fast because it loses or mixes up data gets no figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from . import mariadb
from .experiment import Lies, Refused, Work
from .mariadb import Database, Options
from .stack import Backend, Mounted, Store, check_room, copy_image, finish, format_image, mounted

T = TypeVar("T")
RAW = Backend(Store.RAW)


@dataclass(frozen=True)
class Content:
    """What a database begins with: `name` tells contents of a run apart."""

    name: str
    image_mib: int
    fs: str
    fill: Callable[[Database], None]


def image_of(content: Content, options: Options, work: Work) -> Path:
    """The image with the content, made when it is first asked for."""
    ready = work.shared / f"{content.name}.img"
    if not ready.exists():
        making = ready.with_suffix(".making")
        format_image(making, content.image_mib, content.fs, work)
        with mounted(RAW, making, work) as there:
            mariadb.install(there.path / "data")
            with mariadb.running(there.path / "data", options, work, "filling") as database:
                content.fill(database)
        making.rename(ready)
    return ready


def measure(
    content: Content,
    backend: Backend,
    options: Options,
    tables: Sequence[str],
    work: Work,
    use: Callable[[Database, Mounted], T],
) -> T:
    """Runs `use` on a database on a back end. Raises `Lies` if the image has something else afterwards."""
    # The content, the row's copy, the cache, and logs of servers.
    check_room(work.folder, 2 * content.image_mib + backend.cache_mib + 512)
    golden = image_of(content, options, work)
    image = work.folder / "image"
    copy_image(golden, image)
    with mounted(backend, image, work) as there, mariadb.running(there.path / "data", options, work) as database:
        used = use(database, there)
        through = database.checksums(tables)
    finish(backend, image, work)
    compare(through, read_alone(image, options, tables, work))
    return used


def read_alone(image: Path, options: Options, tables: Sequence[str], work: Work) -> dict[str, str]:
    """Checksums of all tables on the image alone. Raises `Lies` if they cannot be read: they could before."""
    try:
        with (
            mounted(RAW, image, work) as there,
            mariadb.running(there.path / "data", options, work, "after") as database,
        ):
            return database.checksums(tables)
    except Refused as error:
        raise Lies(f"on the image alone the database cannot be used any more: {error}") from error


def compare(through: dict[str, str], alone: dict[str, str]) -> None:
    """Raises `Lies` for tables that differ."""
    wrong = [table for table in through if through[table] != alone.get(table)]
    if wrong:
        raise Lies(f"through the cache and without it, these tables differ: {', '.join(wrong)}")
