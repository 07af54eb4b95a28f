"""Checks of numbers and names that a user may state; each names the value and what is allowed."""

import difflib
import math
from collections.abc import Iterable

from cake_sglang.errors import CakeError, PolicyError


def check_int(name: str, value: object, low: int, high: int | None = None, error: type[CakeError] = PolicyError) -> int:
    """Give ``value`` back if it is an integer in ``[low, high]``; booleans and floats are not integers."""
    allowed = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise error(f"{name} is {value!r}, expected {allowed}")
    if value < low or (high is not None and value > high):
        raise error(f"{name} is {value}, expected {allowed}")
    return value


def check_number(
    name: str,
    value: object,
    low: float,
    high: float = math.inf,
    *,
    above: bool = False,
    error: type[CakeError] = PolicyError,
) -> float:
    """Give ``value`` back as a float if it is finite and in ``[low, high]``, or in ``(low, high]`` with ``above``."""
    start = f"above {low:g}" if above else f"of at least {low:g}"
    allowed = f"a finite number {start}" + ("" if math.isinf(high) else f" and at most {high:g}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise error(f"{name} is {value!r}, expected {allowed}")
    if value < low or value > high or (above and value == low):
        raise error(f"{name} is {value:g}, expected {allowed}")
    return float(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def check_bool(name: str, value: object) -> bool:
    """Give ``value`` back if it is true or false."""
    if not isinstance(value, bool):
        raise PolicyError(f"{name} is {value!r}, expected true or false")
    return value


def check_choice(name: str, value: object, choices: Iterable[str]) -> str:
    """Give ``value`` back if it is one of ``choices``; otherwise name the nearest ones."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise PolicyError(f"{name} is {value!r}; {nearest(value, known)}")
    return value


def nearest(value: object, known: Iterable[str]) -> str:
    """Give the words that tell a user what was probably meant, and what exists."""
    names = sorted(known)
    near = difflib.get_close_matches(str(value), names, n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(repr(name) for name in near)}? " if near else ""
    return f"{meant}known: {', '.join(names) or 'none'}"
