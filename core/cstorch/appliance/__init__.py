"""An Executable runs: in this process, or on several systems."""
