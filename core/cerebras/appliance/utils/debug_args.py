"""Arguments for the debugging of a cluster (`cerebras.appliance.utils.debug_args`): none here."""

from cstorch.absent import absent, anything_of

_ADVICE = "Leave debug_args out, or set cstorch.backends.csx.debug.debug_args to a dict."

__getattr__ = anything_of("cerebras.appliance.utils.debug_args", _ADVICE)

DebugArgs = absent("cerebras.appliance.utils.debug_args.DebugArgs", _ADVICE)
get_debug_args = absent("cerebras.appliance.utils.debug_args.get_debug_args", _ADVICE)
update_debug_args_from_keys = absent("cerebras.appliance.utils.debug_args.update_debug_args_from_keys", _ADVICE)
write_debug_args = absent("cerebras.appliance.utils.debug_args.write_debug_args", _ADVICE)
