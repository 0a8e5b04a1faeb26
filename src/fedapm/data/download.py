"""Where data sets are published, and how they come from there into a data root.

An archive is downloaded into the folder ``downloads`` of the root, checked, and unpacked beside its place before it is
moved there, so that a data set is either wholly there or not at all. A download that breaks off goes on where it
stopped.
"""

from __future__ import annotations

import errno
import http.client
import logging
import re
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote, urlsplit

from fedapm.errors import FedapmError
from fedapm.runs.files import write_atomic
from fedapm.version import __version__

if TYPE_CHECKING:
    from fedapm.data.dataset import Tell

DOWNLOADS = "downloads"
TIMEOUT = 30.0
"""Seconds without a byte after which a server is given up."""
PIECE = 1 << 18
NOT_THE_DISK = (None, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)
"""Errors in writing that come of what an archive holds. A decompressor's complaint has no number at all."""
TRIES = 5
"""How often a download that keeps breaking off is taken up again at once."""


@dataclass(frozen=True)
class Archive:
    """A published file that can be downloaded and unpacked in the data root."""

    url: str
    checksum: str | None
    """As ``md5:…`` or ``sha256:…``; None where none is published."""
    holds: str
    """A file or folder that is in the root when the archive has been unpacked."""
    into: str = ""
    """The folder in the root in which it is unpacked; the root itself if empty."""
    file: str = ""
    """The name under which it is kept; the last part of the address if empty."""

    @property
    def kept_as(self) -> str:
        """The name of the downloaded file."""
        return self.file or unquote(PurePosixPath(urlsplit(self.url).path).name)


@dataclass(frozen=True)
class Origin:
    """Where a data set comes from and what must lie in the root."""

    page: str
    """The address where it is described."""
    licence: str
    layout: str
    """What the root holds when it is there, in a few words."""
    archives: tuple[Archive, ...] = ()
    by_hand: str = ""
    """What to fetch by hand and where to put it, where a licence or a form stands in the way."""


@dataclass(frozen=True)
class Fetched:
    """What came of fetching a data set."""

    root: Path
    unpacked: tuple[str, ...] = ()
    """What was unpacked now; empty where everything was there already."""
    notes: tuple[str, ...] = ()
    """What a person should know, such as a file that could not be verified. One line each."""


def get(name: str, origin: Origin, root: Path, tell: Tell) -> Fetched:
    """Download and unpack what is missing of a data set; nothing is touched where it is there already."""
    if not origin.archives:
        raise FedapmError(f"{name} cannot be downloaded without you: {_by_hand(origin, root)}")
    unpacked, notes = [], []
    for archive in origin.archives:
        if (root / archive.holds).exists():
            continue
        path = root / DOWNLOADS / archive.kept_as
        try:
            _download(archive, path, tell)
            if archive.checksum is None:
                notes.append(
                    f"{path.name} could not be verified, because no checksum is published for it (its sha256 is "
                    f"{_digest(path, 'sha256')})."
                )
            _unpack(archive, path, root, tell)
        except _Unreachable as error:
            raise FedapmError(
                f"{archive.url} could not be downloaded ({error}){error.hint}. Try again, or download it by hand (see "
                f"{origin.page}), save it as {path} and then try again."
            ) from None
        except OSError as error:
            raise FedapmError(
                f"{name} could not be written to {root} ({_one_line(error)}); make room or choose another data root, "
                "and try again: what has been downloaded is kept."
            ) from None
        unpacked.append(archive.holds)
    return Fetched(root, tuple(unpacked), tuple(notes))


def _by_hand(origin: Origin, root: Path) -> str:
    what = " ".join((origin.by_hand or f"get {origin.layout}").split()).rstrip(".")
    return f"{what} (data root: {root}; see {origin.page}; licence: {origin.licence})."


class _Unreachable(Exception):
    """A server that does not give the file."""

    hint = ""


class _BrokenOff(_Unreachable):
    """A server that gave a part of the file."""

    hint = "; what has arrived is kept, and the next try goes on from there if the server can"


def _download(archive: Archive, path: Path, tell: Tell) -> None:
    """Have the checked file at a path; a file that is there and passes the check is left alone."""
    import pooch  # type: ignore[import-untyped]

    def downloader(url: str, output_file: str, _: Any) -> None:
        part = path.with_name(path.name + ".part")
        _receive(url, part, archive.checksum is not None, lambda done, of: tell(f"download {path.name}", done, of))
        _check(archive, part, path)
        part.replace(output_file)
        _validator(part).unlink(missing_ok=True)

    path.parent.mkdir(parents=True, exist_ok=True)
    with _quiet(pooch.get_logger()):
        pooch.retrieve(archive.url, archive.checksum, fname=path.name, path=path.parent, downloader=downloader)


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _digest(path: Path, algorithm: str) -> str:
    import pooch

    return str(pooch.file_hash(str(path), alg=algorithm))


def _check(archive: Archive, part: Path, path: Path) -> None:
    if archive.checksum is None:
        return
    algorithm, _, expected = archive.checksum.partition(":")
    found = _digest(part, algorithm)
    if found != expected.lower():
        aside = _set_aside(part, path)
        raise FedapmError(
            f"{path.name} from {archive.url} has the {algorithm} {found} instead of {expected}; it was set aside as "
            f"{aside}. Try again; if it is the same then, the publisher may have changed the file."
        )


def _set_aside(path: Path, name: Path) -> Path:
    """Move a file that is of no use out of the way, so that the next try starts anew."""
    _validator(path).unlink(missing_ok=True)
    return path.replace(name.with_name(name.name + ".bad"))


def _validator(part: Path) -> Path:
    """Where the version of a partly downloaded file is noted, as its server names it."""
    return part.with_name(part.name + ".version")


def _receive(url: str, part: Path, checked: bool, tell: Callable[[int, int], None]) -> None:
    """Download into a file, going on from what it holds already, as long as each try brings something."""
    for left in reversed(range(TRIES)):
        before = _size(part)
        try:
            _attempt(url, part, checked, tell)
        except _BrokenOff:
            if not left or _size(part) <= before:
                raise
        else:
            break


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _attempt(url: str, part: Path, checked: bool, tell: Callable[[int, int], None]) -> None:
    noted = _validator(part)
    version = noted.read_text(encoding="utf-8") if noted.exists() else ""
    # two halves of different files must not be joined: either the server sees to it or the checksum does
    start = _size(part) if version or checked else 0
    headers = {"User-Agent": f"fedapm/{__version__}"}
    if start:
        headers |= {"Range": f"bytes={start}-"} | ({"If-Range": version} if version else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:
            # there is nothing after what is here: it is the whole file, or another one
            if error.headers.get("Content-Range", "").strip() != f"bytes */{start}":
                part.unlink()
                _attempt(url, part, checked, tell)
            return
        raise _Unreachable(f"the server says {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise (_BrokenOff if start else _Unreachable)(_one_line(reason)) from None
    with response:
        more = response.length or 0
        if response.status != 206:
            start = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            part.unlink()
            raise _Unreachable("the server sends another part of the file than it was asked for")
        write_atomic(noted, _version(response))
        with part.open("ab" if start else "wb") as file:
            _copy(response, file, start, start + more if more else 0, tell)


def _version(response: Any) -> str:
    """What names this version of the file in a later request; empty where the server gives nothing reliable."""
    tag = str(response.headers.get("ETag") or "")
    return tag if tag.startswith('"') else str(response.headers.get("Last-Modified") or "")


def _copy(response: Any, file: BinaryIO, done: int, total: int, tell: Callable[[int, int], None]) -> None:
    tell(done, total)
    while True:
        try:
            piece = response.read1(PIECE)
        except (OSError, http.client.HTTPException) as error:
            raise _BrokenOff(_one_line(error)) from None
        if not piece:
            break
        file.write(piece)
        done += len(piece)
        tell(done, total)
    if done < total:
        raise _BrokenOff(f"the connection broke off after {done} of {total} bytes")


def _one_line(error: Any) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__


class _BadArchive(Exception):
    """An archive that cannot or must not be unpacked."""


def _unpack(archive: Archive, path: Path, root: Path, tell: Tell) -> None:
    """Unpack beside the root's content, then move into place."""
    scratch = Path(tempfile.mkdtemp(dir=root, prefix=".unpack-"))
    try:
        folder = scratch / archive.into
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _extract(path, folder, lambda done, of: tell(f"unpack {path.name}", done, of))
            if not (scratch / archive.holds).exists():
                raise _BadArchive(f"does not hold {archive.holds}, so it is not the published file")
        except _BadArchive as error:
            aside = _set_aside(path, path)
            raise FedapmError(
                f"{path} {error}; it was set aside as {aside}. Try again to download it from {archive.url} anew."
            ) from None
        _merge(scratch, root, scratch / archive.holds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _extract(path: Path, folder: Path, tell: Callable[[int, int], None]) -> None:
    damage = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)
    try:
        with path.open("rb") as file:
            if file.read(2) == b"PK":
                _extract_zip(file, folder, tell)
            else:
                file.seek(0)
                _extract_tar(file, path.stat().st_size, folder, tell)
    except tarfile.FilterError as error:
        raise _reaching_out(error.tarinfo.name) from None
    except damage as error:
        raise _BadArchive(f"is cut off, damaged or not an archive ({_one_line(error)})") from None
    except OSError as error:
        if error.errno not in NOT_THE_DISK:
            raise
        raise _BadArchive(f"is damaged ({_one_line(error)})") from None


def _extract_zip(file: BinaryIO, folder: Path, tell: Callable[[int, int], None]) -> None:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        total, done = sum(member.compress_size for member in members), 0
        for member in members:
            if _wanted(member.filename):
                archive.extract(member, folder)
            done += member.compress_size
            tell(done, total)


def _extract_tar(file: BinaryIO, total: int, folder: Path, tell: Callable[[int, int], None]) -> None:
    with tarfile.open(fileobj=file, mode="r:*") as archive:
        for member in archive:
            if _wanted(member.name):
                archive.extract(member, folder, filter="data")
            tell(min(file.tell(), total), total)
        # a compressed stream is verified at its very end, which is beyond the last member
        while archive.fileobj is not None and archive.fileobj.read(PIECE):
            pass
    tell(total, total)


def _wanted(name: str) -> bool:
    """Whether a member is content; a name that leads elsewhere is refused."""
    parts = re.split(r"[/\\]", name)
    if name.startswith(("/", "\\")) or ".." in parts or re.match(r"[A-Za-z]:", name):
        raise _reaching_out(name)
    return "__MACOSX" not in parts


def _reaching_out(name: str) -> _BadArchive:
    return _BadArchive(f"has the member {name!r}, which would reach outside of the data root")


def _merge(source: Path, target: Path, last: Path) -> None:
    """Move what is in one folder into another. What shows that the data set is there comes last."""
    for entry in sorted(source.iterdir(), key=lambda entry: (last.is_relative_to(entry), entry.name)):
        place = target / entry.name
        if entry.is_dir() and not entry.is_symlink() and place.is_dir():
            _merge(entry, place, last)
        else:
            entry.replace(place)
