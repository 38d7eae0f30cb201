"""Settings of the compiler of a cluster (`cerebras.appliance.utils.ini`): none here."""

from cstorch.absent import absent, anything_of

_ADVICE = "Leave them out, or set cstorch.backends.csx.debug.ini to a dict."

__getattr__ = anything_of("cerebras.appliance.utils.ini", _ADVICE)

set_ini = absent("cerebras.appliance.utils.ini.set_ini", _ADVICE)
set_default_ini = absent("cerebras.appliance.utils.ini.set_default_ini", _ADVICE)
