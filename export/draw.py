"""Draws images with a setting."""

# lantern: eagle-dyn(d5,w10,n58) add(k100,d0.1)
import sys
from itertools import count
from pathlib import Path

from specfrontier import load_engine

HERE = Path(__file__).parent
# builtin, a folder of weights, or FILE#ENTRY of a models.yaml; paths start at this folder
MODELS = "builtin"
BATCH = 1  # images at once; its speed was measured at this size


def main() -> None:
    captions = sys.argv[1:]
    if not captions or captions[0].startswith("-"):
        sys.exit("usage: python draw.py CAPTION...")
    try:
        models = MODELS if MODELS == "builtin" else str(HERE / Path(MODELS).expanduser())
        images = load_engine(HERE / "setting.yaml", models, batch=BATCH).draw(captions)
    # a caption that the model cannot read, or weights that are not there
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    free = (path for number in count() if not (path := Path(f"{number:04d}.png")).exists())
    for path, drawn in zip(free, images, strict=False):
        drawn.image.save(path)
        print(f"{path}: {drawn!r}")


if __name__ == "__main__":
    main()
