"""PNG files that Pillow cannot read, or would not."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

from PIL import Image


def chunk(kind: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(4) + kind + body + zlib.crc32(kind + body).to_bytes(4)


def noise(path: Path) -> bytes:
    """The bytes of a noisy image, which take several chunks."""
    Image.frombytes("RGB", (150, 150), random.Random(0).randbytes(3 * 150 * 150)).save(path)
    return path.read_bytes()


def broken_chunk_type(path: Path) -> None:
    """Behind the first pixels, so only who reads them sees it: Pillow raises SyntaxError."""
    data = bytearray(noise(path))
    second = data.index(b"IDAT", data.index(b"IDAT") + 4)
    data[second : second + 4] = b"\x00\x01\x02\x03"
    path.write_bytes(data)


def without_pixels(path: Path, side: int = 9) -> None:
    """All checksums are right, and there are no pixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
