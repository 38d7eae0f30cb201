"""Small tools (`cerebras.appliance.utils`)."""
