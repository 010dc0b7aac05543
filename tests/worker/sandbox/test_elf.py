"""What is read of ELF files and of the loader's cache, against the loader itself; and files that are not what they say.

The oracle is the loader: `ld.so --list` loads what a file needs and says where it found it, without running it.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sysconfig
from pathlib import Path

import pytest

from benteng.errors import PolicyError
from benteng.worker.sandbox import elf, programs, roots
from benteng.worker.sandbox.library_cache import cached_libraries

LOADER = next((path for path in roots.LOADERS if os.path.exists(path)), "")  # noqa: PTH110 - a name
LIBRARY = Path(os.path.realpath("/bin/true"))

pytestmark = pytest.mark.skipif(not cached_libraries(), reason="no cache of the loader's: not a host with glibc")


def listed(path):
    """What the loader takes for a file: real paths."""
    said = subprocess.run([LOADER, "--list", path], capture_output=True, text=True, check=False).stdout
    found = [line.split("=>")[-1].split()[0] for line in said.splitlines() if "/" in line]
    return {os.path.realpath(each) for each in found}


def modules():
    """Some of Python's own modules, and programs."""
    own = sorted(Path(sysconfig.get_config_var("DESTSHARED")).glob("*.so"))
    return [*map(str, own[::5]), *(p for p in ("/usr/bin/git", "/usr/bin/env") if Path(p).exists())]


@pytest.mark.parametrize("path", modules(), ids=lambda path: Path(path).name)
def test_every_library_that_the_loader_takes_is_found(path):
    """None is missing: a program that is listed can start, and a module can be imported."""
    finder = programs.Finder()

    finder.take(path)

    assert listed(path) <= finder.found | {os.path.realpath(LOADER)}


def test_a_program_is_told_from_a_library():
    """A program can be started by itself; a library of Python's cannot; text is neither."""
    assert elf.is_program("/bin/true")
    assert not elf.is_program(modules()[0])
    assert not elf.is_program(__file__)


@pytest.mark.parametrize("length", [4, 15, 16, 40, 63, 64, 100, 300])
def test_a_file_that_ends_too_early_is_a_program(tmp_path, length):
    """What cannot be understood is kept from cells, and nothing but the one error is raised."""
    path = tmp_path / "cut"
    path.write_bytes(LIBRARY.read_bytes()[:length])

    with pytest.raises(elf.ElfError):
        elf.read(str(path))
    assert elf.is_program(str(path))


ENTRY = range(24, 32)
"""Where it says at which address it begins to run: of no interest here."""


@pytest.mark.parametrize("place", range(16, 64))
def test_a_header_that_lies_is_an_error_or_harmless(tmp_path, place):
    """Any byte of the header can be wrong: offsets and counts are bounded before they are followed."""
    data = bytearray(LIBRARY.read_bytes())
    data[place] = 0xFF
    path = tmp_path / "lies"
    path.write_bytes(data)

    try:
        found = elf.read(str(path))
    except elf.ElfError:
        return
    assert found.program or place in ENTRY


def test_offsets_of_64_bits_are_no_trouble(tmp_path):
    """The program headers are said to lie at the end of the address space."""
    data = bytearray(LIBRARY.read_bytes())
    struct.pack_into("<Q", data, 32, (1 << 64) - 64)
    path = tmp_path / "far"
    path.write_bytes(data)

    with pytest.raises(elf.ElfError):
        elf.read(str(path))


def test_directories_are_opened_around_programs(tmp_path):
    """Everything in them but other programs, links left out; what has none is opened as a whole."""
    for name in ("app/data/public.txt", "app/bin/text", "app/module.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    shutil.copy("/bin/true", tmp_path / "app/bin/tool")
    shutil.copy("/bin/true", tmp_path / "app/listed")
    (tmp_path / "app/link").symlink_to("/etc")

    found = programs.resolve("p", [str(tmp_path / "app/listed")], [str(tmp_path / "app")])

    app = str(tmp_path / "app")
    assert {app, f"{app}/bin"} == {each for each in found.listed if each.startswith(app)}
    assert {f"{app}/bin/text", f"{app}/data", f"{app}/module.py"} <= set(found.read)
    assert f"{app}/listed" in found.run
    assert not any("tool" in each or each.endswith("link") for each in (*found.read, *found.run))


def test_too_many_files_are_refused(tmp_path, monkeypatch):
    """Looking through them takes a bounded time."""
    for number in range(20):
        (tmp_path / str(number)).touch()
    monkeypatch.setattr(programs, "FILES_MAX", 10)

    with pytest.raises(PolicyError, match="files lie in"):
        programs.resolve("p", ["/usr/bin/env"], [str(tmp_path)])


def test_a_cache_of_another_format_is_empty(tmp_path):
    """Then libraries are looked for in the directories that every loader knows."""
    (tmp_path / "cache").write_bytes(b"something else")

    assert {} == cached_libraries(str(tmp_path / "cache"))
    assert {} == cached_libraries(str(tmp_path / "nowhere"))
