"""What client programs import of `cerebras.appliance`: logging, errors, environment variables and small tools.

There is no cluster here, so what speaks to one imports and says so when it is used.
"""
