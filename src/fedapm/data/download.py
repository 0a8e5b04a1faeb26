"""Where data sets are published, and how they are downloaded and unpacked.

Archives are downloaded by pooch into the folder ``downloads`` of the data root and checked against their checksums.
An interrupted download resumes where it stopped. An archive is unpacked in a temporary folder of the root and then
moved into place, so a data set is either complete or absent.
"""

from __future__ import annotations

import errno
import logging
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from fedapm.errors import FedapmError
from fedapm.runs.files import write_atomic
from fedapm.version import __version__

logger = logging.getLogger(__name__)

ProgressCallback = Callable[[str, int, int], None]
"""Called with the task, how much of it is done, and the total (0 if unknown)."""

DOWNLOADS = "downloads"
TIMEOUT = 30.0
"""Seconds without a byte after which a server is given up."""
CHUNK_BYTES = 1 << 14
MAX_ATTEMPTS = 5
"""How often an interrupted download is resumed before it fails."""
MOST_UNPACKED = 64 * 2**30
"""Bytes that an archive may unpack to."""
ERRORS_OF_THE_ARCHIVE = (None, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)
"""Write errors caused by the archive's content rather than by the disk; decompressors set no error number."""


def no_progress(task: str, done: int, total: int) -> None:
    """A progress callback that reports nothing."""
    del task, done, total


@dataclass(frozen=True)
class Archive:
    """A published file that is downloaded and unpacked in the data root."""

    url: str
    checksum: str | None
    """``md5:…`` or ``sha256:…``; None if none is published."""
    creates: str
    """A file or folder in the root that exists once the archive is unpacked."""
    unpack_in: str = ""
    """The folder of the root to unpack in; the root itself if empty."""
    filename: str = ""
    """The name of the downloaded file; the last part of the URL if empty."""

    @property
    def download_name(self) -> str:
        """The name of the downloaded file."""
        return self.filename or unquote(PurePosixPath(urlsplit(self.url).path).name)


@dataclass(frozen=True)
class Origin:
    """Where a data set is published and which files the data root must hold."""

    page: str
    """The web page that describes it."""
    license: str
    layout: str
    """The files in the root, in a few words."""
    archives: tuple[Archive, ...] = ()
    by_hand: str = ""
    """What to download by hand and where to put it, if a license or a form prevents an automatic download."""


def download(name: str, origin: Origin, root: Path, progress: ProgressCallback = no_progress) -> list[str]:
    """Download and unpack the missing archives of a data set.

    Args:
        name: The data set, for messages.
        origin: Where it is published.
        root: The data root.
        progress: Called while downloading and unpacking.

    Returns:
        What each newly unpacked archive created; empty if everything was there already.

    Raises:
        FedapmError: The data set must be fetched by hand, a server does not deliver a file, a file is damaged, or the
            disk cannot be written.
    """
    if not origin.archives:
        raise FedapmError(f"{name} cannot be downloaded automatically: {_manual_steps(origin, root)}")
    unpacked = []
    for archive in origin.archives:
        if (root / archive.creates).exists():
            continue
        path = root / DOWNLOADS / archive.download_name
        try:
            _retrieve(archive, path, progress)
            _unpack(archive, path, root, progress)
            if archive.checksum is None:
                _keep_as_first_seen(path)
        except _DownloadError as error:
            raise FedapmError(
                f"{archive.url} could not be downloaded ({error}){error.hint}. Try again, or download it by hand (see "
                f"{origin.page}), save it as {path} and then try again."
            ) from None
        except OSError as error:
            raise FedapmError(
                f"{name} could not be written to {root} ({_one_line(error)}); free some space or choose another data "
                "root, and try again: finished downloads are kept."
            ) from None
        unpacked.append(archive.creates)
    return unpacked


def _manual_steps(origin: Origin, root: Path) -> str:
    steps = " ".join((origin.by_hand or f"get {origin.layout}").split()).rstrip(".")
    return f"{steps} (data root: {root}; see {origin.page}; license: {origin.license})."


class _DownloadError(Exception):
    """A server does not deliver a file."""

    hint = ""


class _Interrupted(_DownloadError):
    """The connection broke after a part of the file was received."""

    hint = "; what was received is kept, and the next try resumes there if the server supports it"


def _retrieve(archive: Archive, path: Path, progress: ProgressCallback) -> None:
    """Download a file to a path; pooch skips a file that is already there and checks the checksum."""
    import pooch  # type: ignore[import-untyped]

    def downloader(url: str, output_file: str, _: Any) -> None:
        part = path.with_name(path.name + ".part")
        _resume(url, part, archive.checksum is not None, lambda n, of: progress(f"download {path.name}", n, of))
        part.replace(output_file)
        _version_file(part).unlink(missing_ok=True)

    path.parent.mkdir(parents=True, exist_ok=True)
    with _quiet(pooch.get_logger()):
        try:
            pooch.retrieve(archive.url, archive.checksum, fname=path.name, path=path.parent, downloader=downloader)
        except ValueError as error:
            raise FedapmError(
                f"{archive.url}: {_one_line(error)} Try again; if the checksum is the same then, the publisher may "
                "have changed the file."
            ) from None
    if archive.checksum is None:
        _check_as_first_seen(path)


def _check_as_first_seen(path: Path) -> None:
    """Compare a file that has no published checksum with the one that was seen first, whose checksum is kept."""
    found, pin = _sha256(path), _pin(path)
    if not pin.is_file():
        logger.warning(
            "%s could not be verified, because no checksum is published for it (its sha256 is %s).", path.name, found
        )
        return
    seen = (pin.read_text("utf-8", "replace").split() or ["missing"])[0]
    if seen != found:
        raise FedapmError(
            f"{path} is not the file that was seen first: its sha256 is {found}, that in {pin} is {seen[:64]}. Remove "
            "both files if the publisher has changed it."
        )


def _keep_as_first_seen(path: Path) -> None:
    """Keep the checksum of a file that proved to hold the data set."""
    if not _pin(path).is_file():
        write_atomic(_pin(path), f"{_sha256(path)}  {path.name}\n")


def _pin(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _sha256(path: Path) -> str:
    import pooch

    return str(pooch.file_hash(str(path), alg="sha256"))


@contextmanager
def _quiet(log: logging.Logger) -> Iterator[None]:
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


def _version_file(part: Path) -> Path:
    """The file with the server's version (ETag or date) of a partial download."""
    return part.with_name(part.name + ".version")


def _resume(url: str, part: Path, has_checksum: bool, progress: Callable[[int, int], None]) -> None:
    """Download into a file, resuming as long as each attempt receives something."""
    for attempts_left in reversed(range(MAX_ATTEMPTS)):
        size = _size(part)
        try:
            _receive(url, part, has_checksum, progress)
        except _Interrupted:
            if not attempts_left or _size(part) <= size:
                raise
        else:
            break


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


class _ProgressBar:
    """What pooch's downloader takes for a progress bar; counts the bytes of the file, resumed ones included."""

    total = 0

    def __init__(self, file: BinaryIO, progress: Callable[[int, int], None]) -> None:
        self.file, self.start, self.progress = file, 0, progress

    def update(self, _: int) -> None:
        self.progress(self.file.tell(), self.start + self.total if self.total else 0)

    def reset(self) -> None:
        pass

    def close(self) -> None:
        pass


class _RangeNotSatisfiable(Exception):
    """The server has nothing after the bytes that are already here."""


def _receive(url: str, part: Path, has_checksum: bool, progress: Callable[[int, int], None]) -> None:
    """Make one attempt to download the rest of a file with pooch."""
    import pooch
    import requests

    version_file = _version_file(part)
    version = version_file.read_text(encoding="utf-8") if version_file.exists() else ""
    # parts of two versions must never be joined: either the server (If-Range) or the checksum prevents that
    start = _size(part) if version or has_checksum else 0
    headers = {"User-Agent": f"fedapm/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-"} | ({"If-Range": version} if version else {})

    with ExitStack() as responses, part.open("ab") as file:
        bar = _ProgressBar(file, progress)

        def before_the_body(response: Any, **_: Any) -> None:
            responses.enter_context(response)
            if response.status_code == 416 and start:
                raise _RangeNotSatisfiable(response.headers.get("Content-Range", "").strip())
            if response.is_redirect:
                return
            if not response.ok:
                raise _DownloadError(f"the server says {response.status_code} {response.reason}")
            resumed = response.status_code == 206
            if resumed and response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                bar.start = start
            elif file.tell():
                file.truncate(0)
            if resumed and not bar.start:
                raise _DownloadError("the server sends another part of the file than requested")
            write_atomic(version_file, _version(response.headers))

        download_body = pooch.HTTPDownloader(
            progressbar=bar,
            chunk_size=CHUNK_BYTES,
            timeout=TIMEOUT,
            headers=headers,
            hooks={"response": before_the_body},
        )
        try:
            download_body(url, file, None)
        except _RangeNotSatisfiable as error:
            if str(error) == f"bytes */{start}":
                return  # the file is complete
            file.truncate(0)
        except requests.RequestException as error:
            reason = _one_line(_root_cause(error))
            if received := _size(part):
                raise _Interrupted(f"the connection broke off after {received} bytes: {reason}") from None
            raise _DownloadError(reason) from None
        else:
            return
    _receive(url, part, has_checksum, progress)


def _version(headers: Any) -> str:
    """The version of a file for a later request; empty if the server states none that is reliable."""
    tag = str(headers.get("ETag") or "")
    return tag if tag.startswith('"') else str(headers.get("Last-Modified") or "")


def _root_cause(error: BaseException) -> BaseException:
    while error.__context__ is not None:
        error = error.__context__
    return error


def _one_line(error: Any) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__


class _BadArchive(Exception):
    """An archive that cannot or must not be unpacked."""


# pooch's Unzip and Untar report no progress, and they clean names that lead out of the folder instead of refusing them


def _unpack(archive: Archive, path: Path, root: Path, progress: ProgressCallback) -> None:
    """Unpack in a temporary folder of the root, then move the content into place."""
    scratch = Path(tempfile.mkdtemp(dir=root, prefix=".unpack-"))
    try:
        folder = scratch / archive.unpack_in
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _extract(path, folder, lambda done, total: progress(f"unpack {path.name}", done, total))
            if not (scratch / archive.creates).exists():
                raise _BadArchive(f"does not hold {archive.creates}, so it is not the published file")
        except _BadArchive as error:
            renamed = path.replace(path.with_name(path.name + ".bad"))
            raise FedapmError(
                f"{path} {error}; it was renamed to {renamed}. Try again to download it from {archive.url}."
            ) from None
        _merge(scratch, root, scratch / archive.creates)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _extract(path: Path, folder: Path, progress: Callable[[int, int], None]) -> None:
    damage = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)
    try:
        with path.open("rb") as file:
            if file.read(2) == b"PK":
                _extract_zip(file, folder, progress)
            else:
                file.seek(0)
                _extract_tar(file, path.stat().st_size, folder, progress)
    except tarfile.FilterError as error:
        raise _outside(error.tarinfo.name) from None
    except damage as error:
        raise _BadArchive(f"is cut off, damaged or not an archive ({_one_line(error)})") from None
    except OSError as error:
        if error.errno not in ERRORS_OF_THE_ARCHIVE:
            raise
        raise _BadArchive(f"is damaged ({_one_line(error)})") from None


def _extract_zip(file: BinaryIO, folder: Path, progress: Callable[[int, int], None]) -> None:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        total, done = sum(member.compress_size for member in members), 0
        _check_size(sum(member.file_size for member in members))
        for member in members:
            if _is_content(member.filename):
                archive.extract(member, folder)
            done += member.compress_size
            progress(done, total)


def _extract_tar(file: BinaryIO, total: int, folder: Path, progress: Callable[[int, int], None]) -> None:
    with tarfile.open(fileobj=file, mode="r:*") as archive:
        unpacked = 0
        for member in archive:
            unpacked += member.size
            _check_size(unpacked)
            if _is_content(member.name):
                archive.extract(member, folder, filter="data")
            progress(min(file.tell(), total), total)
        # a compressed stream is verified at its end, which is after the last member
        while archive.fileobj is not None and archive.fileobj.read(CHUNK_BYTES):
            pass
    progress(total, total)


def _check_size(unpacked: int) -> None:
    if unpacked > MOST_UNPACKED:
        raise _BadArchive(f"unpacks to more than {MOST_UNPACKED / 2**30:g} GiB, which no known data set does")


def _is_content(name: str) -> bool:
    """Whether to extract a member; a name that leads out of the folder is refused."""
    parts = re.split(r"[/\\]", name)
    if name.startswith(("/", "\\")) or ".." in parts or re.match(r"[A-Za-z]:", name):
        raise _outside(name)
    return "__MACOSX" not in parts


def _outside(name: str) -> _BadArchive:
    return _BadArchive(f"has the member {name!r}, which would be written outside of the data root")


def _merge(source: Path, target: Path, last: Path) -> None:
    """Move a folder's content into another folder; ``last``, which marks the data set as complete, comes last."""
    for entry in sorted(source.iterdir(), key=lambda entry: (last.is_relative_to(entry), entry.name)):
        destination = target / entry.name
        if entry.is_dir() and not entry.is_symlink() and destination.is_dir():
            _merge(entry, destination, last)
        else:
            entry.replace(destination)
