"""Numbers for people (`cerebras.appliance.utils.units`)."""

from cstorch.absent import anything_of
from cstorch.sizes import size_text

__getattr__ = anything_of("cerebras.appliance.utils.units", "Format the number in the program.")


def bytes_to_human(value: float) -> str:
    """A number of bytes in the unit that suits it.

    Args:
        value: Bytes.

    Returns:
        For example "1.5 GiB".
    """
    return size_text(value)
