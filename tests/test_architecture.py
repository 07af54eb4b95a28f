"""What no type checker sees: names that must not be shadowed, imports that must not happen, walls."""

import ast
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORKSHOPS = ("kernels", "rag", "api", "eval")
PACKAGES = {
    "cake_sglang": ROOT / "cake_sglang",
    **{f"cake_{workshop}": ROOT / workshop / f"cake_{workshop}" for workshop in WORKSHOPS},
}
HEAVY = ("torch", "triton", "sglang", "transformers")
LIGHT_MODULES = (*PACKAGES, "cake_sglang.cli", "cake_rag.pipeline", "cake_api.app")
OPTIONAL_LIGHT_MODULES = ("cake_rag.langchain_adapter",)
# The engine imports the method in every process, and a person reads it without a GPU.
METHOD_MODULES = ("cake_sglang.policies.registry", "cake_sglang.policies.compress", "cake_sglang.segment")
MAX_LINES = 400
NAMES_THAT_SAY_NOTHING = {"utils", "helpers", "common", "misc"}
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]

# Contract -> file and violation to plant in it. It must break that contract and no other.
VIOLATIONS = {
    "floors: eval > api > (cake_sglang | rag) > kernels": (
        "kernels/cake_kernels/__init__.py",
        "import cake_eval",
    ),
    "the service tower meets the engine tower only over HTTP": ("api/cake_api/__init__.py", "import torch"),
    "the roof calls the service over HTTP": ("eval/cake_eval/__init__.py", "import cake_api"),
    "only cake_sglang.runtime knows SGLang": ("kernels/cake_kernels/__init__.py", "import sglang"),
    "the method needs torch alone": ("cake_sglang/budget.py", "import triton"),
    "inside the engine tower": ("cake_sglang/errors.py", "import cake_sglang.config"),
}


def our_python_files() -> list[Path]:
    """All Python files of the five packages, the workshops around them, the tests and the examples."""
    folders = [ROOT / name for name in ("cake_sglang", *WORKSHOPS, "tests", "examples")]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def fresh_python(code: str) -> str:
    """What a new interpreter prints that was started in the repository root."""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def lint_imports(folder: Path) -> dict[str, bool]:
    """Contract name -> whether the packages under ``folder`` keep it."""
    paths = [folder, *(folder / workshop for workshop in WORKSHOPS)]
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    verdicts = re.findall(r"^(.+?)\.* (KEPT|BROKEN)", result.stdout, flags=re.MULTILINE)
    assert verdicts, result.stdout + result.stderr
    kept = {name.strip(): verdict == "KEPT" for name, verdict in verdicts}
    assert (result.returncode == 0) is all(kept.values()), result.stdout + result.stderr
    return kept


@pytest.fixture
def copy_of_the_house(tmp_path: Path) -> Path:
    for package in PACKAGES.values():
        shutil.copytree(package, tmp_path / package.relative_to(ROOT), ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.sglang
def test_hugging_face_kernels_is_not_shadowed_in_the_repository_root():
    if not any(importlib.metadata.packages_distributions().get("kernels", [])):
        pytest.skip("Hugging Face's kernels is not installed")
    origin = Path(fresh_python("import importlib.util as u; print(u.find_spec('kernels').origin)"))
    assert origin.parent.parent.name == "site-packages"
    assert not origin.is_relative_to(ROOT / "kernels")


def test_a_workshop_is_not_a_package():
    assert [workshop for workshop in WORKSHOPS if (ROOT / workshop / "__init__.py").exists()] == []


@pytest.mark.parametrize("module", [*LIGHT_MODULES, *OPTIONAL_LIGHT_MODULES])
def test_importing_this_module_loads_no_heavy_library(module: str):
    package, _, rest = module.partition(".")
    if module in OPTIONAL_LIGHT_MODULES and not (PACKAGES[package] / f"{rest}.py").exists():
        pytest.skip(f"{module} does not exist yet")
    loaded = fresh_python(f"import sys, {module}; print(*sorted({{*{HEAVY!r}}} & {{*sys.modules}}))")
    assert loaded == ""


@pytest.mark.parametrize("module", METHOD_MODULES)
def test_importing_the_method_loads_torch_and_no_other_heavy_library(module: str):
    loaded = fresh_python(f"import sys, {module}; print(*sorted({{*{HEAVY!r}}} & {{*sys.modules}}))")
    assert loaded == "torch" or (module == "cake_sglang.segment" and loaded == "")


def test_every_package_ships_its_types():
    assert [name for name, folder in PACKAGES.items() if not (folder / "py.typed").exists()] == []


def test_no_file_is_longer_than_400_lines():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in our_python_files()}
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_no_file_has_a_name_that_says_nothing():
    assert [str(path.relative_to(ROOT)) for path in our_python_files() if path.stem in NAMES_THAT_SAY_NOTHING] == []


def test_no_import_is_relative():
    relative = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in our_python_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level > 0
    ]
    assert relative == []


def test_all_import_contracts_are_kept():
    assert lint_imports(ROOT) == {contract["name"]: True for contract in CONTRACTS}


@pytest.mark.parametrize("name", [contract["name"] for contract in CONTRACTS])
def test_a_contract_breaks_when_its_wall_is_pierced(name: str, copy_of_the_house: Path):
    file, violation = VIOLATIONS[name]
    with (copy_of_the_house / file).open("a") as source:
        source.write(f"\n{violation}\n")
    broken = [contract for contract, is_kept in lint_imports(copy_of_the_house).items() if not is_kept]
    assert broken == [name]


def test_the_planted_copy_is_clean_before_anything_is_planted(copy_of_the_house: Path):
    assert all(lint_imports(copy_of_the_house).values())


def test_each_command_named_in_the_entry_points_lives_in_one_of_our_packages():
    commands = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["cake_sglang.commands"]
    missing = []
    for command, target in commands.items():
        package, *rest = target.partition(":")[0].split(".")
        if not PACKAGES[package].joinpath(*rest).with_suffix(".py").exists():
            missing.append(command)
    assert missing == []


def test_the_packages_that_are_tested_are_those_of_this_checkout():
    for name, folder in PACKAGES.items():
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin == str(folder / "__init__.py")
