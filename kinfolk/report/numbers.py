"""Numbers as people read them: counts with a prefix, bytes, ticks of an axis."""

PREFIXES = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}


def amount(number: float, digits: int = 4) -> str:
    """Write a count with the largest prefix that leaves it at least 1: 2500000 is "2.5M"."""
    for prefix, unit in PREFIXES.items():
        if abs(number) >= unit:
            return f"{number / unit:.{digits}g}{prefix}"
    return f"{number:.{digits}g}"


def memory(size: float | None) -> str:
    """Write bytes in megabytes or gigabytes; "-" where there are none."""
    if not size:
        return "-"
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def tick(value: float) -> str:
    """Write the number at a tick of an axis in a few characters."""
    if value and abs(value) >= 1e15:
        return f"{value:.1e}".replace("e+", "e")
    if value and abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return amount(value, 3)
