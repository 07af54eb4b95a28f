"""Size and installation time of every lock, each in a fresh environment in a temporary folder.

The time is that of a second installation: what uv has in its cache is linked, what is missing is downloaded first.
``python -m cake_eval.install_size`` prints one JSON document as its last line: gigabytes (1e9 bytes) and seconds.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("api", "engine-cpu", "engine-gpu", "dev-cpu")


def measure(lock: Path, folder: Path) -> tuple[float, float]:
    """Install a lock into a new environment twice, the second time timed; gives gigabytes and seconds."""
    seconds, target = 0.0, folder
    for number in range(2):
        target = folder / f"{lock.stem}-{number}"
        venv.create(target)
        uv = str(Path(sys.executable).parent / "uv")
        started = time.perf_counter()
        command = [uv, "pip", "install", "--quiet", "--python", str(target / "bin" / "python"), "--no-deps"]
        subprocess.run([*command, "-r", str(lock)], check=True)
        seconds = time.perf_counter() - started
    return size_bytes(target) / 1e9, seconds


def size_bytes(folder: Path) -> int:
    """Give the bytes of all regular files under a folder, links to other places left out."""
    files = (Path(base) / name for base, _, names in os.walk(folder) for name in names)
    return sum(path.stat().st_size for path in files if not path.is_symlink())


def main() -> int:
    """Measure all locks and print them."""
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in LOCKS:
            print(f"install_size: {name}", file=sys.stderr, flush=True)
            size, seconds = measure(ROOT / "locks" / f"{name}.txt", Path(folder))
            result[f"{name}_gb"] = round(size, 2)
            result[f"{name}_s"] = round(seconds, 1)
    result["cpu_share"] = result["engine-cpu_gb"] / result["engine-gpu_gb"]
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
