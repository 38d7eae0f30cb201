"""Environment variables of a run and of the processes that it starts (`cerebras.appliance.environment`)."""

import os

appliance_environ = os.environ
"""Input workers and systems are started by this process on this host and inherit its environment."""
