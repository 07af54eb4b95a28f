"""The images' recipes: linted and read, not built. Their commands are run outside a container."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cake_testing.deployment import (
    DOCKERFILES,
    ROOT,
    compose_config,
    context_copies,
    effective,
    is_in_context,
    read_dockerfile,
    stages,
)

IMAGES = (
    ("engine", "docker/engine/Dockerfile", "cpu"),
    ("engine-gpu", "docker/engine/Dockerfile", "gpu"),
    ("api", "api/Dockerfile", "api"),
)
images = pytest.mark.parametrize(("service", "dockerfile", "stage"), IMAGES, ids=[image[0] for image in IMAGES])
dockerfiles = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=str)


def compose_service(name: str) -> dict:
    profile = "gpu" if name == "engine-gpu" else "cpu"
    return compose_config("--profile", profile)["services"][name]


def entry_command(dockerfile: str, stage: str) -> list[str]:
    """What a container of that image runs when nobody says otherwise."""
    last = {instruction.word: instruction for instruction in effective(read_dockerfile(ROOT / dockerfile), stage)}
    return last["ENTRYPOINT"].arguments + last["CMD"].arguments


@dockerfiles
def test_hadolint_finds_nothing(dockerfile: Path):
    hadolint = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([hadolint, "--no-color", dockerfile], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, ""), result.stdout + result.stderr


@images
def test_compose_builds_this_stage_of_this_file(service: str, dockerfile: str, stage: str):
    build = compose_service(service)["build"]
    assert (build["dockerfile"], Path(build["context"])) == (dockerfile, ROOT)
    assert build.get("target", list(stages(read_dockerfile(ROOT / dockerfile)))[-1]) == stage


@images
def test_compose_runs_the_command_of_the_image(service: str, dockerfile: str, stage: str):
    said = compose_service(service)
    command = entry_command(dockerfile, stage)
    assert said.get("entrypoint") is None
    assert (said["command"] or command[1:]) == command[1:]


@images
def test_the_image_command_exists_outside_a_container(service: str, dockerfile: str, stage: str):
    program, subcommand, *flags = entry_command(dockerfile, stage)
    assert program == "cake-sglang"
    result = subprocess.run(
        [sys.executable, "-m", "cake_sglang.cli", subcommand, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    for flag in (word for word in flags if word.startswith("--")):
        assert flag in result.stdout


@images
def test_the_image_does_not_run_as_root(service: str, dockerfile: str, stage: str):
    users = [i.rest for i in effective(read_dockerfile(ROOT / dockerfile), stage) if i.word == "USER"]
    assert users[-1:] == ["10001:10001"]


@images
def test_the_image_owns_the_folder_that_the_volume_covers(service: str, dockerfile: str, stage: str):
    steps = [i.rest for i in effective(read_dockerfile(ROOT / dockerfile), stage) if i.word == "RUN"]
    (owner,) = [step for step in steps if "chown -R 10001:10001 /data" in step]
    assert "mkdir -p /data/models /data/service" in owner


@dockerfiles
def test_every_copied_path_exists_and_is_sent_to_the_builder(dockerfile: Path):
    sources = context_copies(read_dockerfile(ROOT / dockerfile))
    assert sources
    missing = [source for source in sources if not (ROOT / source).exists()]
    left_out = [source for source in sources if not is_in_context(source, ROOT / ".dockerignore")]
    assert (missing, left_out) == ([], [])


@pytest.mark.parametrize("path", [".git", ".venv/bin/python", "tests/rag", ".env", "shared", "rag/__pycache__/x.pyc"])
def test_what_no_image_needs_is_not_sent_to_the_builder(path: str):
    assert not is_in_context(path, ROOT / ".dockerignore")


@dockerfiles
def test_every_base_image_is_pinned_to_a_version(dockerfile: Path):
    instructions = read_dockerfile(ROOT / dockerfile)
    names = set(stages(instructions))
    bases = {i.rest.partition(" AS ")[0] for i in instructions if i.word == "FROM"} - names
    assert bases == {"${PYTHON_IMAGE}"}
    (default,) = [i.rest for i in instructions if i.word == "ARG" and i.rest.startswith("PYTHON_IMAGE=")]
    assert default.startswith("PYTHON_IMAGE=python:3.11.")


@dockerfiles
def test_the_images_use_the_build_tools_of_the_developers(dockerfile: Path):
    text = (ROOT / dockerfile).read_text()
    makefile_uv = re.findall(r"^UV_VERSION := (.+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert re.findall(r"\buv==(\S+)", text) == makefile_uv
    assert re.findall(r"\bhatchling==(\S+)", text) == [importlib.metadata.version("hatchling")]


@dockerfiles
def test_the_wheel_builds_from_what_the_image_copies(dockerfile: Path, tmp_path: Path):
    _, steps = stages(read_dockerfile(ROOT / dockerfile))["wheel"]
    for source in context_copies(steps):
        (tmp_path / source).symlink_to(ROOT / source)
    (build,) = [step.rest for step in steps if "hatchling build" in step.rest]
    module, *flags = build.removeprefix("python -m ").replace("/wheel", str(tmp_path / "out")).split()
    result = subprocess.run(
        [sys.executable, "-m", module, *flags], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / "out").glob("cake_sglang-*.whl"))) == 1
