"""Downloads from a server in this process: whole or not at all, taken up again where they broke off, never outside."""

from __future__ import annotations

import hashlib
import io
import logging
import shutil
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedapm.data import download as download_module
from fedapm.data.download import Archive, Origin, download
from fedapm.data.sets.kuhar import KUHAR
from fedapm.data.sets.motionsense import MotionSense
from fedapm.data.sets.spsw import SPSW
from tests.helpers.unit import refused

# noise, so that an archive of it is long enough to break off and any change in it is noticed
NOISE = np.random.default_rng(0).bytes(200_000)
TREE = {"set/a.txt": b"first", "set/deep/noise.bin": NOISE}


@dataclass
class Site:
    """A server's files and manners, and what it was asked."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    status: int = 200
    ranges: bool = True
    validator: bool = True
    chunked: bool = False
    limits: list[int] = field(default_factory=list)
    """How many bytes the next answers give before the connection breaks."""
    odd_range: bool = False
    silent: threading.Event | None = None
    """Where given, nothing is answered until it is set."""
    asked: list[str | None] = field(default_factory=list)
    """The range of each request; None where it wants the whole file."""


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(self.headers.get("Range"))
            if site.silent is not None:
                site.silent.wait()
            name = self.path.lstrip("/").partition("?")[0]
            if site.status != 200 or name not in site.files:
                self.send_error(site.status if site.status != 200 else 404)
                return
            content = site.files[name]
            tag = f'"{hashlib.md5(content).hexdigest()}"'
            start, wanted = 0, self.headers.get("Range")
            if wanted and site.ranges and self.headers.get("If-Range", tag) == tag:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start and start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                first = start + 1 if site.odd_range else start
                self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
            if site.validator:
                self.send_header("ETag", tag)
            body = content[start:]
            if site.chunked:
                self.send_header("Transfer-Encoding", "chunked")
                body = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
            else:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            limit = site.limits.pop(0) if site.limits else len(body)
            self.wfile.write(body[:limit])

        def handle(self) -> None:
            # one answer a connection, so that a broken one ends there
            self.handle_one_request()

        def log_message(self, *_: Any) -> None:
            pass

    Handler.protocol_version = "HTTP/1.1"

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield site
    finally:
        if site.silent is not None:
            site.silent.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server on this machine, reached directly."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving(Site()) as site:
        yield site


def zipped(tree: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in tree.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(tree: dict[str, bytes], *special: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in tree.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in special:
            archive.addfile(member)
    return buffer.getvalue()


def origin(site: Site, name: str, content: bytes, checksum: str | None = "sha256", **options: Any) -> Origin:
    """Publish a file, with its checksum unless told otherwise."""
    site.files[name] = content
    if checksum in ("md5", "sha256"):
        checksum = f"{checksum}:{hashlib.new(checksum, content).hexdigest()}"
    archive = Archive(f"{site.address}/{name}", checksum, **({"creates": "set"} | options))
    return Origin("http://example.invalid/page", "CC0", "set", (archive,), "unpack it in the root")


def content(root: Path) -> dict[str, bytes]:
    """All files of a root but for the downloads."""
    paths = (p for p in root.rglob("*") if p.is_file() and p.relative_to(root).parts[0] != "downloads")
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in paths}


def downloads(root: Path) -> list[str]:
    return sorted(p.name for p in (root / "downloads").iterdir())


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize("checksum", ["md5", "sha256"])
def test_an_archive_is_downloaded_checked_unpacked_and_kept(
    site: Site, tmp_path: Path, capfd: pytest.CaptureFixture[str], pack: Any, checksum: str
) -> None:
    packed = pack(TREE)
    reports: list[tuple[str, int, int]] = []
    root = tmp_path / "new" / "root"
    toy = origin(site, "toy.pack", packed, checksum)
    assert download("toy", toy, root, lambda *report: reports.append(report)) == ["set"]
    assert content(root) == TREE
    assert downloads(root) == ["toy.pack"]
    assert (root / "downloads" / "toy.pack").read_bytes() == packed
    assert list(dict.fromkeys(task for task, _, _ in reports)) == ["download toy.pack", "unpack toy.pack"]
    for task in ("download toy.pack", "unpack toy.pack"):
        done = [d for name, d, _ in reports if name == task]
        assert done == sorted(done)
        assert [d == total > 0 for name, d, total in reports if name == task][-1]
    assert {total for name, _, total in reports if name.startswith("download")} == {len(packed)}
    assert capfd.readouterr() == ("", ""), "a library's own log is not for users"


def test_what_is_there_is_left_alone_and_nobody_is_asked(site: Site, tmp_path: Path) -> None:
    toy = origin(site, "toy.zip", zipped(TREE), None)
    download("toy", toy, tmp_path)
    (tmp_path / "set" / "a.txt").write_text("mine")
    assert download("toy", toy, tmp_path) == []
    assert (tmp_path / "set" / "a.txt").read_text() == "mine"
    assert len(site.asked) == 1


def test_a_file_saved_by_hand_is_unpacked_without_the_network(site: Site, tmp_path: Path) -> None:
    packed = zipped(TREE)
    toy = origin(site, "toy.zip", packed)
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "toy.zip").write_bytes(packed)
    assert download("toy", toy, tmp_path) == ["set"]
    assert content(tmp_path) == TREE
    assert site.asked == []


def test_a_file_saved_by_hand_that_fails_the_check_is_downloaded(site: Site, tmp_path: Path) -> None:
    toy = origin(site, "toy.zip", zipped(TREE))
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "toy.zip").write_bytes(zipped({"set/other": b""}))
    download("toy", toy, tmp_path)
    assert content(tmp_path) == TREE
    assert len(site.asked) == 1


def test_several_archives_and_only_what_is_missing(site: Site, tmp_path: Path) -> None:
    one = origin(site, "one.zip", zipped({"one/x": b"1"}), creates="one").archives
    two = origin(site, "two.tar.gz", tarred({"two/x": b"2"}), creates="two").archives
    both = Origin("page", "CC0", "one and two", one + two)
    (tmp_path / "one").mkdir()
    assert download("toy", both, tmp_path) == ["two"]
    assert content(tmp_path) == {"two/x": b"2"}


def test_unpacking_in_a_folder_beside_what_is_there(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data" / "old").mkdir(parents=True)
    (tmp_path / "data" / "old" / "kept").write_bytes(b"kept")
    packed = zipped({"0.Stand/x.csv": b"0", "old/new": b"new", "__MACOSX/._x": b"", "set/__MACOSX/y": b""})
    toy = origin(site, "odd?name=1", packed, creates="data/0.Stand", unpack_in="data", filename="toy.zip")
    site.files["odd"] = packed
    download("toy", toy, tmp_path)
    assert content(tmp_path) == {"data/0.Stand/x.csv": b"0", "data/old/new": b"new", "data/old/kept": b"kept"}
    assert downloads(tmp_path) == ["toy.zip"]


def test_a_file_is_named_after_its_address() -> None:
    assert Archive("https://host/a%20b/data%201.zip?raw=true#x", None, "x").download_name == "data 1.zip"
    assert Archive("https://host/file", None, "x", filename="y.zip").download_name == "y.zip"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_connection_that_breaks_is_taken_up_again_at_once(site: Site, tmp_path: Path, chunked: bool) -> None:
    packed = tarred(TREE)
    site.limits, site.chunked = [70_000, 60_000], chunked
    download("toy", origin(site, "toy.tar.gz", packed), tmp_path)
    assert content(tmp_path) == TREE
    starts = [int(r.removeprefix("bytes=").rstrip("-")) for r in site.asked[1:] if r]
    assert len(starts) == 2
    assert 0 < starts[0] < starts[1] < len(packed)
    if not chunked:
        # less than a chunk is lost at each break
        assert 0 <= 70_000 - starts[0] < download_module.CHUNK_BYTES
        assert 0 <= starts[0] + 60_000 - starts[1] < download_module.CHUNK_BYTES


def test_a_download_goes_on_in_the_next_call(site: Site, tmp_path: Path) -> None:
    packed = zipped(TREE)
    toy = origin(site, "toy.zip", packed)
    site.limits = [30_000] * download_module.MAX_ATTEMPTS
    with refused(f"{site.address}/toy.zip", "broke off after", "resumes", "by hand", str(tmp_path / "downloads")):
        download("toy", toy, tmp_path)
    assert downloads(tmp_path) == ["toy.zip.part", "toy.zip.part.version"]
    assert not (tmp_path / "set").exists()
    received = (tmp_path / "downloads" / "toy.zip.part").stat().st_size
    assert received > 4 * download_module.CHUNK_BYTES
    download("toy", toy, tmp_path)
    assert site.asked[-1] == f"bytes={received}-"
    assert content(tmp_path) == TREE
    assert downloads(tmp_path) == ["toy.zip"]


def test_a_server_that_gives_nothing_more_is_not_asked_for_ever(site: Site, tmp_path: Path) -> None:
    site.limits = [70_000, 0, 0, 0, 0, 0, 0]
    with refused("broke off after 65536"):
        download("toy", origin(site, "toy.zip", zipped(TREE)), tmp_path)
    assert len(site.asked) == 2


def test_a_server_without_ranges_starts_again(site: Site, tmp_path: Path) -> None:
    site.ranges, site.limits = False, [70_000]
    download("toy", origin(site, "toy.zip", zipped(TREE)), tmp_path)
    assert site.asked == [None, "bytes=65536-"]
    assert content(tmp_path) == TREE


def test_a_server_that_sends_another_range_is_refused_and_forgotten(site: Site, tmp_path: Path) -> None:
    toy = origin(site, "toy.zip", zipped(TREE))
    site.odd_range, site.limits = True, [70_000]
    with refused("another part"):
        download("toy", toy, tmp_path)
    download("toy", toy, tmp_path)
    assert site.asked == [None, "bytes=65536-", None]
    assert content(tmp_path) == TREE


def test_halves_of_two_versions_are_never_joined(site: Site, tmp_path: Path) -> None:
    toy = origin(site, "toy.zip", zipped(TREE), None)
    site.limits = [70_000, 0]
    with refused("broke off"):
        download("toy", toy, tmp_path)
    changed = {"set/a.txt": b"second", "set/deep/noise.bin": NOISE[::-1]}
    site.files["toy.zip"] = zipped(changed)
    download("toy", toy, tmp_path)
    assert site.asked[-1] == "bytes=65536-"
    assert content(tmp_path) == changed


def test_without_checksum_and_version_a_download_starts_again(site: Site, tmp_path: Path) -> None:
    site.validator, site.limits = False, [70_000]
    toy = origin(site, "toy.zip", zipped(TREE), None)
    download("toy", toy, tmp_path)
    assert site.asked == [None, None]
    assert content(tmp_path) == TREE


@pytest.mark.parametrize("extra", [b"", b"too much"])
def test_a_part_that_is_already_whole_or_too_long(site: Site, tmp_path: Path, extra: bytes) -> None:
    packed = zipped(TREE)
    toy = origin(site, "toy.zip", packed)
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "toy.zip.part").write_bytes(packed + extra)
    download("toy", toy, tmp_path)
    assert content(tmp_path) == TREE
    assert site.asked == ([f"bytes={len(packed + extra)}-", None] if extra else [f"bytes={len(packed)}-"])


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_a_wrong_checksum_names_both_and_starts_anew(site: Site, tmp_path: Path, algorithm: str) -> None:
    right, wrong = zipped(TREE), zipped({"set/a.txt": b"tampered"})
    toy = origin(site, "toy.zip", right, algorithm)
    site.files["toy.zip"] = wrong
    sums = [hashlib.new(algorithm, packed).hexdigest() for packed in (right, wrong)]
    with refused("toy.zip", *sums, algorithm, "Deleted download", "Try again"):
        download("toy", toy, tmp_path)
    assert downloads(tmp_path) == []
    assert content(tmp_path) == {}
    site.files["toy.zip"] = right
    download("toy", toy, tmp_path)
    assert content(tmp_path) == TREE


def test_a_checksum_may_be_written_in_capitals(site: Site, tmp_path: Path) -> None:
    packed = zipped(TREE)
    download("toy", origin(site, "toy.zip", packed, f"md5:{hashlib.md5(packed).hexdigest().upper()}"), tmp_path)
    assert content(tmp_path) == TREE


def test_a_file_that_cannot_be_verified_is_logged(site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    packed = zipped(TREE)
    download("toy", origin(site, "toy.zip", packed, None), tmp_path)
    (record,) = caplog.records
    assert (record.levelname, record.name) == ("WARNING", "fedapm.data.download")
    assert "toy.zip could not be verified" in record.getMessage()
    assert hashlib.sha256(packed).hexdigest() in record.getMessage()
    assert len(record.getMessage().splitlines()) == 1


@pytest.mark.parametrize(("status", "reason"), [(404, "404"), (403, "403"), (500, "500"), (416, "416")])
def test_a_server_that_refuses(site: Site, tmp_path: Path, status: int, reason: str) -> None:
    toy = origin(site, "toy.zip", zipped(TREE))
    site.status = status
    with refused(f"{site.address}/toy.zip", reason, "by hand", "http://example.invalid/page", "toy.zip"):
        download("toy", toy, tmp_path)
    assert content(tmp_path) == {}


def test_nobody_there(site: Site, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    toy = Origin("page", "CC0", "set", (Archive(f"http://127.0.0.1:{port}/toy.zip", None, "set"),))
    with refused(f"http://127.0.0.1:{port}/toy.zip", "refused", "by hand"):
        download("toy", toy, tmp_path)


def test_a_server_that_keeps_silent(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "TIMEOUT", 0.1)
    site.silent = threading.Event()
    with refused(f"{site.address}/toy.zip", "timed out", "by hand"):
        download("toy", origin(site, "toy.zip", zipped(TREE)), tmp_path)


def test_an_address_that_is_none(tmp_path: Path) -> None:
    with refused("gopher://host/toy.zip", "by hand"):
        download("toy", Origin("page", "CC0", "x", (Archive("gopher://host/toy.zip", None, "x"),)), tmp_path)


@pytest.mark.parametrize("page", [b"<html>please log in</html>", b"", b"PK, but not a zip", b"\x1f\x8bnot gzip"])
def test_a_page_instead_of_an_archive(site: Site, tmp_path: Path, page: bytes) -> None:
    toy = origin(site, "toy.zip", page, None)
    with refused(str(tmp_path / "downloads" / "toy.zip"), "damaged", "renamed", f"{site.address}/toy.zip"):
        download("toy", toy, tmp_path)
    assert downloads(tmp_path) == ["toy.zip.bad"]
    assert content(tmp_path) == {}
    site.files["toy.zip"] = zipped(TREE)
    download("toy", toy, tmp_path)
    assert content(tmp_path) == TREE, "the next try downloads it anew"


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize("share", [0.001, 0.3, 0.7, 0.999])
def test_an_archive_that_was_published_cut_off(site: Site, tmp_path: Path, pack: Any, share: float) -> None:
    packed = pack(TREE)
    with refused("toy.pack", "cut off"):
        download("toy", origin(site, "toy.pack", packed[: int(share * len(packed))]), tmp_path)
    assert content(tmp_path) == {}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["downloads"]


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_an_archive_with_a_broken_byte(site: Site, tmp_path: Path, pack: Any) -> None:
    packed = bytearray(pack(TREE))
    packed[len(packed) // 2] ^= 255
    with refused("toy.pack", "damaged"):
        download("toy", origin(site, "toy.pack", bytes(packed)), tmp_path)
    assert content(tmp_path) == {}


EVIL = ["../evil", "/evil", "set/../../evil", "..\\evil", "\\evil", "C:\\evil", "c:evil", ".."]


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize("name", EVIL)
def test_nothing_is_written_outside_of_the_root(site: Site, tmp_path: Path, pack: Any, name: str) -> None:
    root = tmp_path / "a" / "root"
    with refused("toy.pack", repr(name), "outside", "renamed"):
        download("toy", origin(site, "toy.pack", pack(TREE | {name: b"evil"})), root)
    assert content(root) == {}
    assert [p.name for p in tmp_path.rglob("*evil*")] == []


def linked(kind: bytes, name: str, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    "member",
    [
        linked(tarfile.SYMTYPE, "set/link", "../../secret"),
        linked(tarfile.SYMTYPE, "set/link", "/etc/passwd"),
        linked(tarfile.LNKTYPE, "set/link", "../../secret"),
        linked(tarfile.FIFOTYPE, "set/pipe"),
        linked(tarfile.CHRTYPE, "set/device"),
    ],
    ids=lambda m: f"{m.type!r} {m.linkname}",
)
def test_links_out_of_the_root_and_devices_are_refused(site: Site, tmp_path: Path, member: tarfile.TarInfo) -> None:
    (tmp_path / "secret").write_text("secret")
    with refused("toy.tar.gz", repr(member.name)):
        download("toy", origin(site, "toy.tar.gz", tarred(TREE, member)), tmp_path / "root")
    assert content(tmp_path / "root") == {}


def test_a_zip_makes_no_links(site: Site, tmp_path: Path) -> None:
    link = zipfile.ZipInfo("set/link")
    link.external_attr = 0o120777 << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    download("toy", origin(site, "toy.zip", buffer.getvalue()), tmp_path)
    assert not (tmp_path / "set" / "link").is_symlink()
    assert content(tmp_path) == {"set/link": b"/etc/passwd"}


def test_an_archive_that_contradicts_itself(site: Site, tmp_path: Path) -> None:
    with refused("toy.tar.gz", "damaged"):
        download("toy", origin(site, "toy.tar.gz", tarred({"set": b"a file", "set/x": b"in it"})), tmp_path)
    assert content(tmp_path) == {}


def test_an_archive_of_something_else(site: Site, tmp_path: Path) -> None:
    with refused("toy.zip", "does not hold set", "renamed"):
        download("toy", origin(site, "toy.zip", zipped({"other/x": b""})), tmp_path)
    assert content(tmp_path) == {}


@pytest.mark.parametrize("by_hand", ["fill in the form, then unpack\nx.zip here.", ""])
def test_what_only_a_person_can_fetch(tmp_path: Path, by_hand: str) -> None:
    mentions = ["fill in the form, then unpack x.zip here"] if by_hand else ["the folder x"]
    with refused("toy", "https://host/page", "CC BY 4.0", str(tmp_path), *mentions):
        download("toy", Origin("https://host/page", "CC BY 4.0", "the folder x", (), by_hand), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full to write to")
def test_a_full_disk_while_downloading(site: Site, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "toy.zip.part").symlink_to("/dev/full")
    with refused("toy", str(tmp_path), "No space left", "free some space"):
        download("toy", origin(site, "toy.zip", zipped(TREE)), tmp_path)


def test_a_full_disk_while_unpacking(site: Site, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="this system cannot limit the size of a file")
    toy = origin(site, "toy.zip", zipped(TREE | {"set/zeros": bytes(10_000_000)}))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, old[1]))
    try:
        with refused("toy", str(tmp_path), "too large", "kept"):
            download("toy", toy, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert content(tmp_path) == {}
    download("toy", toy, tmp_path)
    assert len(site.asked) == 1, "the download was kept"
    assert (tmp_path / "set" / "zeros").stat().st_size == 10_000_000


def test_a_root_that_is_a_file(site: Site, tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    with refused("toy", str(tmp_path / "root")):
        download("toy", origin(site, "toy.zip", zipped(TREE)), tmp_path / "root")


def test_the_librarys_log_is_as_it_was(site: Site, tmp_path: Path) -> None:
    import pooch

    before = pooch.get_logger().level
    download("toy", origin(site, "toy.zip", zipped(TREE)), tmp_path)
    assert pooch.get_logger().level == before != logging.WARNING


class StopRule(Exception):
    pass


def test_who_stops_a_download_can_go_on_later(site: Site, tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if what.startswith("download") and done:
            raise StopRule

    toy = origin(site, "toy.zip", zipped(TREE | {"set/more": NOISE[::-1] + NOISE[::2]}))
    with pytest.raises(StopRule):
        download("toy", toy, tmp_path, stop)
    download("toy", toy, tmp_path)
    assert site.asked[1].startswith("bytes=")
    assert set(content(tmp_path)) == {*TREE, "set/more"}


@pytest.mark.parametrize("known", [KUHAR, MotionSense, SPSW])
def test_the_sensor_sets_say_where_they_are_published(known: Any, tmp_path: Path) -> None:
    (archive,) = known.origin.archives
    assert archive.url.startswith("https://")
    assert archive.download_name.endswith(".zip")
    kind, _, digits = (archive.checksum or "none:").partition(":")
    assert len(digits) == {"sha256": 64, "none": 0}[kind]
    assert known.origin.license
    (tmp_path / archive.creates).mkdir()
    assert download(known.name, known.origin, tmp_path) == []


def test_a_file_without_a_checksum_must_be_the_one_that_was_seen_first(site: Site, tmp_path: Path) -> None:
    toy = origin(site, "toy.zip", zipped(TREE), None)
    download("toy", toy, tmp_path)
    pin = tmp_path / "downloads" / "toy.zip.sha256"
    assert pin.read_text() == f"{hashlib.sha256(site.files['toy.zip']).hexdigest()}  toy.zip\n"
    shutil.rmtree(tmp_path / "set")
    (tmp_path / "downloads" / "toy.zip").unlink()
    site.files["toy.zip"] = zipped(TREE | {"set/a.txt": b"another"})
    with refused("not the file that was seen first", str(pin)):
        download("toy", toy, tmp_path)
    assert not (tmp_path / "set").exists()
    pin.unlink()
    download("toy", toy, tmp_path)
    assert (tmp_path / "set" / "a.txt").read_bytes() == b"another"


@pytest.mark.parametrize("pack", ["zip", "tar"])
def test_an_archive_that_unpacks_to_too_much_is_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: str
) -> None:
    monkeypatch.setattr(download_module, "MOST_UNPACKED", 100_000)
    toy = origin(site, "toy.bin", zipped(TREE) if pack == "zip" else tarred(TREE))
    with refused("unpacks to more than"):
        download("toy", toy, tmp_path)
    assert not (tmp_path / "set").exists()
    assert not list(tmp_path.glob(".unpack-*"))
