"""Settings of the reference's checkpoint writer, which have no counterpart here (`storage.serializers`)."""

from cstorch.absent import absent

_ADVICE = (
    "Leave it out: cstorch.save writes each tensor once, and copies unread ones from the file that they came from."
)

use_external_link = absent("cstorch.storage.serializers.use_external_link", _ADVICE)
cache_deferred_tensors = absent("cstorch.storage.serializers.cache_deferred_tensors", _ADVICE)

__all__ = ["cache_deferred_tensors", "use_external_link"]
